# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Load it in a test that stops a program between two of its calls.  It needs $FAILIO_SO.

# paused RULE COMMAND...: begin it and wait until failio has stopped it by RULE.  Its id is in
# $pid, its output in the files out and err.  It is a failure when the command ends without a
# stop, or is not stopped within 60 s.
paused() {
    local i
    LD_PRELOAD=$FAILIO_SO FAILIO=$1 "${@:2}" >out 2>err 3>&- &
    pid=$!
    for ((i = 0; i < 1200; i++)); do
        case $(cut -d ' ' -f 3 /proc/$pid/stat 2>/dev/null) in
        T) return 0 ;;
        Z | '') break ;;
        esac
        sleep 0.05
    done
    kill -KILL $pid 2>/dev/null || true
    echo "$2 was not stopped by $1" && cat err && false
}

# shellcheck disable=SC2034  # status is for the caller
# ended: $pid goes on to its end; its exit status is in $status.
ended() {
    status=0
    kill -CONT "$pid" 2>/dev/null || true # it may be over
    wait "$pid" || status=$?
}
