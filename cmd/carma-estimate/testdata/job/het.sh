#!/bin/sh
#SBATCH -p gpu -G1
#SBATCH hetjob
#SBATCH -p cpu -n 64
#CARMA off
python train.py
