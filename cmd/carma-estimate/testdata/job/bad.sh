#!/bin/sh
#SBATCH --gpus=1
#CARMA mem=banana
python train.py
