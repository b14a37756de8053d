#!/bin/sh
# Adds up the numbers from 1 to $2 for the sample $1 and writes a histogram, so to speak.
awk -v sample="$1" -v n="$2" 'BEGIN { for (i = 1; i <= n; i++) sum += i; print sample, sum }' >"histogram-$1.txt"
cat "histogram-$1.txt"
