# fish completion of carma-node; made of its flags by go test -update
complete -c carma-node -l version -d 'print the version'
complete -c carma-node -l config -r -F -d 'FILE to read the configuration from'
complete -c carma-node -l node -x -d 'Slurm\'s NAME of this node (default: the host name up to the first dot)'
complete -c carma-node -n __fish_use_subcommand -a agent
complete -c carma-node -n __fish_use_subcommand -a check
complete -c carma-node -n __fish_use_subcommand -a db
complete -c carma-node -n __fish_use_subcommand -a doctor
complete -c carma-node -n __fish_use_subcommand -a epilog
complete -c carma-node -n __fish_use_subcommand -a gpus
complete -c carma-node -n __fish_use_subcommand -a prolog
complete -c carma-node -n __fish_use_subcommand -a readmit
complete -c carma-node -n __fish_use_subcommand -a sample
complete -c carma-node -n __fish_use_subcommand -a setup
complete -c carma-node -n __fish_use_subcommand -a status
complete -c carma-node -n __fish_use_subcommand -a task-prolog
complete -c carma-node -n __fish_use_subcommand -a unbook
