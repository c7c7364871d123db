#compdef carma-node
# Made of its flags by go test -update.
_arguments -s \
	'*--version[print the version]' \
	'*--config[FILE to read the configuration from]:FILE:_files' \
	'*--node[Slurm'\''s NAME of this node (default\: the host name up to the first dot)]:NAME: ' \
	'1:command:(agent check db doctor epilog gpus prolog readmit sample setup status task-prolog unbook)' \
	'*:file:_files'
