#!/bin/sh
# Copies the archives of models.sha256 from $MODELS_FROM to a folder, and checks the SHA-256 of each.
#   fetch.sh SUMS FOLDER
# A valid archive stays; all other files in the folder are removed. Exit code 1 leaves the pod in Init.
set -eu
sums=$1 folder=$2
sed 's/^[0-9a-f]\{64\} [ *]//' "$sums" > "$folder/.names"
rclone sync --files-from-raw "$folder/.names" --checksum --transfers 4 --retries 5 "$MODELS_FROM" "$folder"
cd "$folder"
sha256sum -c "$sums"
