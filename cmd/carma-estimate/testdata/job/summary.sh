#!/bin/sh
#SBATCH -p gpu
#SBATCH --gpus-per-task=1 --ntasks-per-node=2
#CARMA batch=32 optim=adamw
#CARMA|         Layer (type)               Output Shape         Param #
#CARMA|             Linear-1                   [-1, 10]             110
python train.py
