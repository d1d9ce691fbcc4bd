#!/bin/sh
# HAProxy, but `-c` takes as long as a test wants: while there is a file `closed` beside this program, it waits
# and says so by a file `waiting`. The real program is named in the file `real`.
home=$(dirname "$0")
if [ "$1" = -c ]; then
	while [ -e "$home/closed" ]; do
		: >"$home/waiting"
		sleep 0.01
	done
	rm -f "$home/waiting"
fi
exec "$(cat "$home/real")" "$@"
