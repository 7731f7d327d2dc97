#!/bin/sh
# Carries out the work in this folder on the device of this machine. Interrupt it at any time, and start it again: it
# goes on where it was. What it finds is in result.bin, for `autotune collect`.
cd "$(dirname "$0")" || exit 1
case $(uname -m) in
aarch64 | arm64 | armv8*) names="arm64-v8a aarch64-linux armeabi-v7a armv7-linux" ;;
arm*) names="armeabi-v7a armv7-linux" ;;
*) names="x86_64-linux x86_64" ;;
esac
[ -f work.bin ] || {
    echo "work.bin is not in this folder: unpack the whole bundle" >&2
    exit 1
}
for name in $names; do
    agent=./agent-$name
    [ -f "$agent" ] || continue
    chmod 755 "$agent" 2>/dev/null
    "$agent" version >/dev/null 2>&1 || continue
    if [ -d /vendor ]; then
        case $name in *64*) bits=64 ;; *) bits= ;; esac
        LD_LIBRARY_PATH=/vendor/lib$bits:/system/vendor/lib$bits${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
    fi
    "$agent" work.bin result.bin
    status=$?
    [ $status = 0 ] && echo "done: $PWD/result.bin, for autotune collect"
    [ $status = 75 ] && echo "not finished: start it again to go on" >&2
    exit $status
done
echo "no agent in this folder runs here (uname -m: $(uname -m)); on Android it must be below /data/local/tmp" >&2
exit 1
