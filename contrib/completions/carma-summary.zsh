#compdef carma-summary
_arguments -s \
	'--input[shape of a sample]:CxHxW: ' \
	'--seq[tokens of a sample]:N: ' \
	'--vocab[token ids are drawn below this]:N: ' \
	'--batch[batch size per GPU]:N: ' \
	'--optim[optimizer]:WORD: ' \
	'--precision[number format]:WORD: '
