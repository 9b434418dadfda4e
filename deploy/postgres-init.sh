#!/bin/sh
# Run once by the postgres image, on an empty volume: Temporal gets a role of its own on the same server.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
  --set password="$(cat /run/secrets/temporal-password)" <<'SQL'
CREATE ROLE temporal LOGIN CREATEDB PASSWORD :'password';
SQL
