#!/usr/bin/env bash
# flray on SLURM: a Ray cluster of the allocation's nodes for as long as the job runs. From the repository, with flray's environment on PATH:
#   sbatch configs/cluster/slurm.sh run configs/fedproj/cifar10_dir03.yaml data.root=/scratch/data --out /scratch/runs/c10
#   sbatch --nodes=4 configs/cluster/slurm.sh sweep configs/sweeps/fedsol_rho.yaml --out /scratch/sweeps/rho
#   sbatch configs/cluster/slurm.sh resume /scratch/runs/c10              # after the time limit, or a lost node
# The arguments are those of `flray`; --out, data.root and FLRAY_CACHE name folders that the nodes share (or give `storage=`).
# The batch script runs on the first node: there are the head and flray itself, and one `ray start` on every other node.
# Two minutes before the time limit SLURM sends SIGTERM here (--signal): flray saves the run, and `resume` goes on to the same bits.
# To stop it earlier in that way: scancel --batch --signal=TERM JOB.
# Ports are free ones and the token is made for this job, so several jobs, also of other users, share a node without meeting.
# Everything is started in the foreground (--block) of a step of this job and ended with it. Not with `ray stop`, nor with
# `ray symmetric-run`, which calls it: both end every Ray process of yours on a node. GPUs: --gpus-per-node=N, Ray finds them.
#SBATCH --job-name=flray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=flray-%j.log
set -euo pipefail
(($#)) || { echo "usage: sbatch $0 run|sweep|ablate|resume ... (the arguments of flray)" >&2; exit 2; }

RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID # short: Ray's sockets lie below it
mkdir -p "$RAY_TMPDIR"

read -r ip port < <(python -c '
import ray, socket
s = socket.socket(); s.bind(("", 0))
print(ray.util.get_node_ip_address(), s.getsockname()[1])')
export RAY_ADDRESS=$ip:$port

steps=() driver=
finish() {
  [[ -z $driver ]] || kill "$driver" 2>/dev/null || true
  ((${#steps[@]} == 0)) || kill "${steps[@]}" 2>/dev/null || true
  wait || true
  srun --overlap rm -rf "$RAY_TMPDIR" || true
}
trap finish EXIT

ray_node() { # node, further arguments of `ray start`; ports that are 0 are free ones
  srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray start "${@:2}" --block --disable-usage-stats --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="$RAY_TMPDIR" \
    --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 >>"$RAY_TMPDIR/start.log" 2>&1 &
  steps+=($!)
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ray_node "${nodes[0]}" --head --node-ip-address="$ip" --port="$port" --include-dashboard=false
for node in "${nodes[@]:1}"; do
  ray_node "$node" --address="$RAY_ADDRESS"
done

python -c '
import sys, time
from flray.core.schema.errors import ResourceError
from flray.engine.ray.cluster import connect, ray
wanted, until, seen = int(sys.argv[1]), time.monotonic() + 300, 0
while seen < wanted:
    if time.monotonic() > until:
        sys.exit(f"{seen} of {wanted} nodes joined within 5 minutes")
    time.sleep(1)
    try:
        connect("auto", 0)
        seen = sum(node["Alive"] for node in ray.nodes())
    except ResourceError: # the head is not there yet
        pass' "${#nodes[@]}" || { cat "$RAY_TMPDIR/start.log" >&2; exit 1; }

flray "$@" & # RAY_ADDRESS and the token are in its environment
driver=$!
trap 'kill -TERM "$driver" 2>/dev/null || true' TERM
status=0
wait "$driver" || status=$?
while kill -0 "$driver" 2>/dev/null; do # the signal ended the first wait: flray is saving
  status=0
  wait "$driver" || status=$?
done
driver=
exit "$status"
