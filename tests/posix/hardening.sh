# Switches the kernel's hardening of sticky directories off while a script runs that sources this
# (after lib.sh).
#
# That hardening (protected_symlinks and the like) is done in the kernel's own permission checks,
# which a FUSE file system that checks permissions itself does not pass through. It is no part of
# POSIX: switched off while scripts like this run; the last of them restores it. That of hard links
# is on: the daemon does it itself. Descriptor 9 holds the lock: close it (9>&-) for whatever
# outlives the script.
# shellcheck shell=bash disable=SC2034
HARDENING=/run/lock/kestrel-compare
restore_hardening() {
    # The file stays until the next boot: what was set before the first run is what every run
    # restores.
    if flock -n -x 9; then sysctl -q -p "$HARDENING.saved"; fi
}
exec 9>>"$HARDENING"
AT_END=restore_hardening
flock -s 9
[ -s "$HARDENING.saved" ] ||
    sysctl fs.protected_symlinks fs.protected_regular fs.protected_fifos fs.protected_hardlinks \
    >"$HARDENING.saved"
sysctl -q fs.protected_symlinks=0 fs.protected_regular=0 fs.protected_fifos=0 \
    fs.protected_hardlinks=1
