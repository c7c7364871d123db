# fish completion of carma-trace
complete -c carma-trace -l output -s o -r -F -d 'write the lines to FILE'
complete -c carma-trace -l help -s h -d 'print help'
