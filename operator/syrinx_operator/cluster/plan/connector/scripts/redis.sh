# Starts a server of a replicated Redis: as the primary, or as a replica of the one that the sentinels name.
#
# SELF is the host name of this server and its sentinel, HOSTS those of all, and REDISCLI_AUTH the password of the user
# syrinx. Arguments are passed to the server.
set -eu

FAILOVER_SECONDS=10 # How long a former primary waits for the promotion of a replica that has its data.
ABSENT_SECONDS=30   # How long a first start waits for the minority of the sentinels.

cli=$(command -v redis-cli || command -v valkey-cli)
server=$(command -v redis-server || command -v valkey-server)
servers=0
for host in $HOSTS; do servers=$((servers + 1)); done
quorum=$((servers / 2 + 1))

# HOST PORT COMMAND...: prints the reply. Fails if there is none.
call() {
  host=$1 port=$2
  shift 2
  timeout 2 "$cli" --user syrinx --no-auth-warning -h "$host" -p "$port" "$@"
}

# NAME: prints the value of a field in a sentinel's reply.
field() {
  sed -n "/^$1\$/{n;p;q;}"
}

# Sets `primary` to the newest primary that a sentinel names, `own` to the one that this server's sentinel names,
# `answers` to the number of sentinels that reply, and `unaware` to the number of those that know none.
ask_sentinels() {
  primary='' own='' newest=-1 answers=0 unaware=0
  for each in $HOSTS; do
    # During a fail-over only the second reply names the new primary.
    # The exit status of redis-cli does not tell that it could not connect.
    reply=$(printf 'SENTINEL MASTER primary\nSENTINEL GET-MASTER-ADDR-BY-NAME primary\n' | call "$each" 26379 2>/dev/null) || :
    epoch=$(printf '%s\n' "$reply" | field config-epoch)
    named=$(printf '%s\n' "$reply" | tail -n 2 | head -n 1)
    case $reply in
      "ERR No such "*) unaware=$((unaware + 1)) named='' ;;
      *) [ -n "$epoch" ] || continue ;;
    esac
    answers=$((answers + 1))
    if [ "$each" = "$SELF" ]; then own=$named; fi
    if [ "${epoch:--1}" -gt "$newest" ]; then primary=$named newest=$epoch; fi
  done
}

# Whether no primary has ever been, as far as can be known, and this server is the one that becomes the first. A primary
# is known to a majority of the sentinels, so that any majority of them has one that knows it.
is_first() {
  [ "$SELF" = "${HOSTS%% *}" ] || return 1
  [ "$unaware" -eq "$servers" ] || { [ "$unaware" -ge "$quorum" ] && [ "$waited" -ge "$ABSENT_SECONDS" ]; }
}

# Makes the sentinel of this server forget what it knows and watch the primary. Fails if the sentinel does not reply.
# It may have connected to the primary without the password, which it would notice after 15 s: a reset connects again.
watch() {
  {
    printf 'SENTINEL REMOVE primary\n'
    printf 'SENTINEL MONITOR primary %s 6379 %s\n' "$primary" "$quorum"
    printf 'SENTINEL SET primary down-after-milliseconds 1000 failover-timeout 5000 auth-user syrinx auth-pass %s\n' \
      "$REDISCLI_AUTH"
    printf 'SENTINEL RESET primary\n'
  } | call "$SELF" 26379 | grep '^OK' >/dev/null
}

# Whether another server may have received data, so that it is to be promoted. A server with data of its own does not
# wait for those that do not reply: after an outage of all, the sentinels would promote one that lacks its last entries.
may_have_successor() {
  for each in $HOSTS; do
    [ "$each" != "$SELF" ] || continue
    case $(call "$each" 6379 INFO replication 2>/dev/null) in
      *master_repl_offset:0*) ;;
      '') has_data || return 0 ;;
      *) return 0 ;;
    esac
  done
  return 1
}

# Whether this server has an append-only file.
has_data() {
  [ -s /data/appendonly.aof ] || [ -d /data/appendonlydir ]
}

# Makes the sentinel of this server discover the others again once they are connected. By itself it looks every 10 s,
# and it can neither promote nor reconfigure a replica that it does not know.
rediscover() {
  for _ in $(seq 60); do
    if call "$SELF" 6379 INFO replication | grep -Eq "^(master_link_status:up|connected_slaves:$((servers - 1)))"; then
      known=$(call "$SELF" 26379 SENTINEL MASTER primary | field num-slaves)
      ask_sentinels
      if [ "$known" != $((servers - 1)) ] && [ "$answers" -ge "$quorum" ]; then watch; fi
      return
    fi
    sleep 1
  done
}

started=$(date +%s)
while :; do
  ask_sentinels
  waited=$(($(date +%s) - started))
  if [ -z "$primary" ] && is_first; then primary=$SELF; fi
  # A minority may name a primary from before the last fail-over.
  if [ -n "$primary" ] && [ "$answers" -ge "$quorum" ] && { [ "$own" = "$primary" ] || watch; }; then
    # An empty primary would empty its replicas: the sentinels must promote one of them first.
    if [ "$primary" != "$SELF" ] || [ "$waited" -ge "$FAILOVER_SECONDS" ] || ! may_have_successor; then break; fi
  fi
  sleep 0.5
done

umask 077
config=${TMPDIR:-/tmp}/redis.conf
printf 'masteruser syrinx\nmasterauth %s\n' "$REDISCLI_AUTH" >"$config"
if [ "$primary" != "$SELF" ]; then printf 'replicaof %s 6379\n' "$primary" >>"$config"; fi
rediscover >/dev/null 2>&1 &
exec "$server" "$config" --replica-announce-ip "$SELF" "$@"
