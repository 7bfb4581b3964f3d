#!/usr/bin/env bash
# Qwen3-4B on a TPU slice of its own: makes the slice, installs, and runs until the run is complete.
# Started again it goes on where it was. Needs gcloud with a project, and a Filestore or NFS share
# with the model that the slice's network reaches.
#
#   REPOSITORY=https://... SHARE=10.0.0.2:/share bash docs/launch/tpu_vm.sh
set -euo pipefail

NAME=${NAME:-qwen3-4b}
ZONE=${ZONE:-europe-west4-b}
ACCELERATOR=${ACCELERATOR:-v5p-64} # 32 chips on 8 hosts; v5litepod-8 for Qwen3-4B@v5e-8
RUNTIME=${RUNTIME:-v2-alpha-tpuv5} # v2-alpha-tpuv5-lite for v5e
CONFIG=${CONFIG:-Qwen3-4B@v5p-64}
: "${REPOSITORY:?the address to clone this repository from}"
: "${SHARE:?HOST:/PATH of a file share with the folder models/Qwen3-4B}"

on_all() {
    gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

if ! gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" >/dev/null 2>&1; then
    gcloud compute tpus tpu-vm create "$NAME" --zone="$ZONE" \
        --accelerator-type="$ACCELERATOR" --version="$RUNTIME"
fi

on_all "
    set -e
    sudo apt-get -qq update && sudo apt-get -qq install -y nfs-common
    mountpoint -q /share || { sudo mkdir -p /share && sudo mount $SHARE /share; }
    test -d code || git clone -q $REPOSITORY code
    cd code && git pull -q
    # The Python of the image may be older than 3.11.
    test -x ~/.local/bin/uv || curl -LsSf https://astral.sh/uv/install.sh | sh
    test -d .venv || ~/.local/bin/uv venv --quiet --seed --python 3.12 .venv
    .venv/bin/pip install -q -e '.[train,tpu]'
"

# JAX learns from the machine's metadata who the other hosts are.
ATTEMPTS=0
while true; do
    STATUS=0
    on_all "
        cd code && .venv/bin/python -m experiments.main \
            --config=experiments/configs/hardware.py:$CONFIG \
            --config.model.path=/share/models/Qwen3-4B --workdir=/share/runs/$NAME
    " || STATUS=$?
    # ssh passes on the largest code of the hosts. 75: told to leave; 69, 134, 137: a process is gone;
    # 255: a host is. Starting again mends nothing else, such as a mistyped option.
    case $STATUS in
    0) break ;;
    69 | 75 | 134 | 137 | 255) ;;
    *) exit "$STATUS" ;;
    esac
    ATTEMPTS=$((ATTEMPTS + 1))
    if [ "$ATTEMPTS" -ge 10 ]; then
        echo "gave up after $ATTEMPTS attempts" >&2
        exit "$STATUS"
    fi
    sleep 60
done
echo "done; the slice still costs: gcloud compute tpus tpu-vm delete $NAME --zone=$ZONE"
