#!/bin/sh
# Make Temporal's databases, or bring them up to the version of this image. Safe to run again.
set -eu
SQL_PASSWORD=$(cat /run/secrets/temporal-password)
export SQL_PASSWORD

prepare() {
  database=$1
  versions=/etc/temporal/schema/postgresql/v12/$2/versioned
  tool="temporal-sql-tool --plugin postgres12 --ep postgres -p 5432 -u temporal --db $database"
  $tool create
  # A database without a version table is new.
  if ! $tool update-schema -d "$versions"; then
    $tool setup-schema -v 0.0
    $tool update-schema -d "$versions"
  fi
}

prepare temporal temporal
prepare temporal_visibility visibility
