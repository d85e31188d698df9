#!/bin/sh
# Upgrades workers one after another, without a failed request:
#
#   upgrade.sh vllm-0 vllm-1 vllm-2
#
# First give the StatefulSet the new image, with updateStrategy: {type: OnDelete}. SIGHTLINE_ADMIN and SIGHTLINE_ADMIN_TOKEN name the
# admin page, such as svc/sightline and the secret's token; NAMESPACE is both's. Each worker is cordoned for SETTLE seconds, in which what
# others can serve goes to them; then it is drained, which takes TIMEOUT at most, and replaced by UPGRADE, which gets its name. Other
# than a pod's deletion, UPGRADE must return only when the new one answers. The next one's turn is when Sightline reads its events. A
# worker that does not come back, or a drain that takes too long, ends it: uncordon brings that worker back. Until the new one is known,
# Sightline says that there is no such worker, which is no error here.
set -eu
export NAMESPACE="${NAMESPACE:-llm}"
upgrade=${UPGRADE:-"kubectl -n $NAMESPACE delete pod"}
for worker; do
	sightline cordon --namespace "$NAMESPACE" "$worker"
	sleep "${SETTLE:-30}"
	sightline drain --namespace "$NAMESPACE" "$worker" --timeout "${TIMEOUT:-30m}"
	$upgrade "$worker"
	tries=0
	until now=$(sightline workers --namespace "$NAMESPACE" "$worker" -o json 2>/dev/null) &&
		echo "$now" | grep -q '"events": "live"' && ! echo "$now" | grep -q '"health"'; do
		tries=$((tries + 1))
		[ "$tries" -lt "${TRIES:-600}" ] || { echo "$worker did not come back" >&2; exit 1; }
		sleep 1
	done
	sightline uncordon --namespace "$NAMESPACE" "$worker"
done
