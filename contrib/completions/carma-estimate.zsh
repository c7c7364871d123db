#compdef carma-estimate
# Made of its flags by go test -update.
_arguments -s \
	'*--version[print the version]' \
	'*--summary[model summary or trace; - for stdin]:FILE:_files' \
	'*--trace[trace the PyTorch command of the script; needs PyTorch 2 and no GPU]' \
	'*--batch[samples per step and GPU]:N: ' \
	'*--seq[tokens per sample]:N: ' \
	'*--input[size of a sample]:CxHxW: ' \
	'*--optim[adam, adamw, adamw_hf, adam8bit, sgd, sgdm, adagrad, adadelta, rmsprop, adafactor]:WORD: ' \
	'*--foreach[torch'\''s foreach optimizers are used]:0|1: ' \
	'*--precision[fp32, amp, bf16, fp16]:WORD: ' \
	'*--parallel[none, dp, ddp, fsdp, zero1, zero2, zero3]:WORD: ' \
	'*--attn[eager, sdpa, flash]:WORD: ' \
	'*--grad-ckpt[gradient checkpointing]' \
	'*--dropout[dropout layers are active]:0|1: ' \
	'*--dynamic-shapes[lengths or sizes vary between steps]' \
	'*--params[unique trainable parameters\: 110M, 7B]:N: ' \
	'*--gpus[N GPUs on one node; with a script, like sbatch --gpus]:N: ' \
	'*-G[N GPUs on one node; with a script, like sbatch --gpus]:N: ' \
	'*--base[MIB that a process holds before it allocates (default\: measured on an A100)]:MIB: ' \
	'*--method[analytic (default analytic)]:WORD: ' \
	'*--write[put the summary and the keys into the script, or only mem=]' \
	'*--partition[like sbatch --partition]:NAME: ' \
	'*-p[like sbatch --partition]:NAME: ' \
	'*--gres[like sbatch --gres]:LIST: ' \
	'*--carma[like sbatch --carma (default\: CARMA of the environment)]:KEYS: ' \
	'*--config[FILE to read the configuration from]:FILE:_files' \
	'*--cases[one case per line, as JSON; - for stdin]:FILE:_files' \
	'*--json[print JSON (docs/json.md)]' \
	'*--ascii[draw with ASCII characters only]' \
	'*:file:_files'
