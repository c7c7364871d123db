# fish completion of carma-summary
complete -c carma-summary -l input -x -d 'shape of a sample'
complete -c carma-summary -l seq -x -d 'tokens of a sample'
complete -c carma-summary -l vocab -x -d 'token ids are drawn below this'
complete -c carma-summary -l batch -x -d 'batch size per GPU'
complete -c carma-summary -l optim -x -d 'optimizer'
complete -c carma-summary -l precision -x -d 'number format'
