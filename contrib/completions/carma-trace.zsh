#compdef carma-trace
_arguments -s \
	'(-o --output)'{-o,--output}'[write the lines to FILE]:FILE:_files' \
	'(-h --help)'{-h,--help}'[print help]' \
	'*:COMMAND:_files'
