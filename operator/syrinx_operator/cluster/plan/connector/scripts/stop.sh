# Before a server of a replicated Redis stops: if it is the primary, another server becomes it.
#
# SELF is its host name, HOSTS those of all servers, and REDISCLI_AUTH the password of the user syrinx.
set -eu

cli=$(command -v redis-cli || command -v valkey-cli)

# HOST PORT COMMAND...: prints the reply. Fails if there is none.
call() {
  host=$1 port=$2
  shift 2
  timeout 2 "$cli" --user syrinx --no-auth-warning -h "$host" -p "$port" "$@"
}

# HOST: whether its server is a primary.
is_primary() {
  call "$1" 6379 INFO replication | grep -q '^role:master'
}

# SENTINEL: has it promote a replica of this server. One that has just started may still name a former primary.
fail_over() {
  [ "$(call "$1" 26379 SENTINEL GET-MASTER-ADDR-BY-NAME primary | head -n 1)" = "$SELF" ] || return 1
  case $(call "$1" 26379 SENTINEL FAILOVER primary) in OK | INPROG*) ;; *) return 1 ;; esac
}

is_primary "$SELF" || exit 0
others=''
for each in $HOSTS; do
  if [ "$each" != "$SELF" ]; then others="$others $each"; fi
done
# The sentinel beside this server stops too.
for sentinel in $others; do
  if fail_over "$sentinel"; then break; fi
done
for _ in $(seq 50); do
  for promoted in $others; do
    if is_primary "$promoted"; then
      # The third server follows it at once, even if the sentinel does not know it yet.
      for each in $others; do
        [ "$each" = "$promoted" ] || call "$each" 6379 REPLICAOF "$promoted" 6379
      done
      exit 0
    fi
  done
  sleep 0.1
done
