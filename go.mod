module carma

go 1.24.0

require (
	github.com/BurntSushi/toml v1.6.0
	github.com/NVIDIA/go-nvml v0.13.3-1
	github.com/mattn/go-sqlite3 v1.14.52
	github.com/spf13/pflag v1.0.10
	golang.org/x/sys v0.41.0
)

require golang.org/x/tools v0.26.0 // indirect

// Test-only.
require github.com/rogpeppe/go-internal v1.14.1
