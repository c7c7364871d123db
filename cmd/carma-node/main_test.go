// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"carma/prolog/userfile"
)

var update = flag.Bool("update", false, "write the completions anew")

func TestMain(m *testing.M) {
	// The program starts itself to read with the job's user's rights (package userfile).
	if len(os.Args) == 3 && os.Args[1] == userfile.Command {
		userfile.Child()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == lockAll {
		lockUntilClosed(os.Args[2:])
		return
	}
	testscript.Main(m, map[string]func(){"carma-node": main, "carma-prolog": main, "carma-epilog": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
