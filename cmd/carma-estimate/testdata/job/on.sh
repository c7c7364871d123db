#!/bin/sh
#SBATCH --gpus=1
#CARMA on
python train.py
