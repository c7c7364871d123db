#!/bin/sh
#SBATCH --partition=gpu --gres=gpu:1
#CARMA mem=12G
python train.py
