#!/bin/sh
# Copies the archives that models.sha256 names from $MODELS_FROM into a folder, and holds each against its SHA-256.
#   fetch.sh SUMS FOLDER
# One that is there already and right stays; anything else in the folder goes. Exit code 1 leaves the pod in Init.
set -eu
sums=$1 folder=$2
sed 's/^[0-9a-f]\{64\} [ *]//' "$sums" > "$folder/.names"
rclone sync --files-from-raw "$folder/.names" --checksum --transfers 4 --retries 5 "$MODELS_FROM" "$folder"
cd "$folder"
sha256sum -c "$sums"
