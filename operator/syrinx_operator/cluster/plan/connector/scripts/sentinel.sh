# Starts the sentinel beside a server of a replicated Redis. What it knows is in its configuration file.
#
# SELF is its host name, and REDISCLI_AUTH the password of the user syrinx. The first argument is the path of the
# configuration file, further ones are passed to the sentinel.
set -eu

server=$(command -v redis-server || command -v valkey-server)
config=$1
shift
umask 077
# With a fixed identity, a sentinel that has lost its file replaces itself in the memory of the others.
cat >"$config.new" <<END
sentinel myid $(printf '%s' "$SELF" | sha1sum | cut -c 1-40)
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $SELF
sentinel sentinel-user syrinx
sentinel sentinel-pass $REDISCLI_AUTH
$(sed -E -e '/^sentinel (myid|resolve-hostnames|announce-hostnames|announce-ip|sentinel-user|sentinel-pass) /d' \
  -e "s/^(sentinel auth-pass primary ).*/\1$REDISCLI_AUTH/" "$config" 2>/dev/null)
END
mv "$config.new" "$config"
exec "$server" "$config" --sentinel "$@"
