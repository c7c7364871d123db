#!/bin/bash
#SBATCH --gres=gpu:1
#CARMA mem=14000M
export MODEL=llama
torchrun --nproc_per_node=2 train.py
vllm serve $MODEL --gpu-memory-utilization $CARMA_MEM_FRACTION
python - <<PY
import jax
PY
