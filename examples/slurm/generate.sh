#!/bin/sh
# Generates the events FIRST … of one local job: generate.sh EVENTS FIRST SEED
set -eu
done=0
while [ "$done" -lt "$1" ]; do
    echo "event $(($2 + done)) seed $3"
    done=$((done + 1))
    if [ $((done % 25)) -eq 0 ]; then
        pilotage-progress generated "$done" "$1"
        sleep 0.5
    fi
done >events.txt
pilotage-progress generated "$1" "$1"
