#!/bin/sh
# Stands in for apptainer, which no registry that tests can reach has: THE REAL PROGRAM IS NOT TESTED.
# What it does is real: user, mount and process namespaces, a root of its own with the bound directories.
# Any image is the programs of this host without its other files. Arguments go to the file in
# $APPTAINER_LOG, which is passed on like all variables of apptainer.
test "$1" = --version && { echo "apptainer version 1.3.4"; exit 0; }
test -n "$APPTAINER_LOG" && printf '%s\n' "$@" >"$APPTAINER_LOG"
fail() { echo "INFO:    Starting" >&2; echo "FATAL:   $1" >&2; exit 255; }
test "$1" = exec || fail "unknown command $1"
shift
binds= directory=/
while :
do
  case $1 in
    --containall | --no-home | --nv) shift ;;
    --pwd) directory=$2; shift 2 ;;
    --bind) binds="$binds $2"; shift 2 ;;
    -*) fail "unknown flag $1" ;;
    *) break ;;
  esac
done
image=$1
shift
case $image in
  docker://missing) fail "Unable to handle $image uri: reading manifest latest: manifest unknown" ;;
  docker://away) fail "Unable to handle $image uri: dial tcp: i/o timeout" ;;
  docker://full) fail "while making image from oci registry: no space left on device" ;;
  *://*) ;;
  *) grep -q "an image" "$image" 2>/dev/null || fail "$image: image format not recognized" ;;
esac
exec unshare --user --map-root-user --mount --pid --fork --kill-child -- /bin/sh -c '
set -e
binds=$1 directory=$2
shift 2
mount -t tmpfs tmpfs /mnt
for part in usr bin sbin lib lib64 etc dev
do
  if [ -L "/$part" ]; then cp -P "/$part" /mnt/
  elif [ -d "/$part" ]; then mkdir "/mnt/$part"; mount --rbind "/$part" "/mnt/$part"
  fi
done
mkdir /mnt/proc /mnt/tmp
mount -t proc proc /mnt/proc
for bind in $binds
do
  test -d "/mnt/${bind#*:}" || case ${bind#*:} in
    /tmp/?* | /var/tmp/?*) echo "FATAL: no mount point ${bind#*:}" >&2; exit 255 ;;
    *) mkdir -p "/mnt/${bind#*:}" ;;
  esac
  mount --bind "${bind%%:*}" "/mnt/${bind#*:}"
done
export PATH=/usr/bin:/bin OF_IMAGE=1
exec /usr/sbin/chroot /mnt /bin/sh -c '\''cd "$0" && exec "$@"'\'' "$directory" "$@"
' sh "$binds" "$directory" "$@"
