#!/bin/bash
# Ends Envoy without cutting answers: as a preStop hook, or ExecStop of a systemd unit (docs/operations.md).
#
#   end.sh [ADMIN [SECONDS]]     default: 127.0.0.1:9901 600
#
# Health checks begin to fail, clients are told to close their connections, and it returns when no request is left, or after SECONDS.
# Needs bash alone, which Envoy's image has.
at=${1:-127.0.0.1:9901}
ask() {
  exec 3<>"/dev/tcp/${at%:*}/${at##*:}" || exit 1
  printf '%s %s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
}
for path in /healthcheck/fail '/drain_listeners?graceful'; do
  case $(ask POST "$path") in "HTTP/1.1 200 "*) ;; *) echo "Envoy at $at refuses POST $path: see admin.allow_paths" >&2; exit 1 ;; esac
done
for ((i = 0; i < ${2:-600}; i++)); do
  sleep 1 # requests come until clients and load balancers have noticed
  case $(ask GET '/stats?filter=^http\.ingress\.downstream_rq_active$') in *": 0"*) exit 0 ;; esac
done
