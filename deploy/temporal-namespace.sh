#!/bin/sh
# Make the namespace, with 30 days of history for the Web UI. Safe to run again.
set -eu
until temporal operator cluster health; do sleep 1; done
temporal operator namespace describe --namespace default ||
  temporal operator namespace create --namespace default --retention 720h
