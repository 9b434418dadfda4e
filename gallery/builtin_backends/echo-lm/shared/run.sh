#!/bin/sh
# Start the backend: run.sh --addr HOST:PORT [--model FILE]. Port 0 takes a free one; the first line of output names it.
exec "${PYTHON:-python3}" -u "$(dirname "$0")/server.py" "$@"
