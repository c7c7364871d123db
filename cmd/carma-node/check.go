// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"carma/cmd/internal/cli"
	"carma/db/texttable"
	"carma/gres/nvml"
	"carma/slurmbridge/config"
)

// plain parses the arguments of a command without arguments.
func plain(name, does string, args []string) error {
	f := cli.Flags("carma-node "+name, "usage: carma-node "+name+"\n\n"+does+".\n", os.Stdout)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Fail(cli.ExitUsage, "%s takes no arguments", name)
	}
	return nil
}

// sampleApart is the interval over which a single sample measures SM activity.
const sampleApart = 200 * time.Millisecond

func runSample(_ context.Context, e env, args []string) error {
	if err := plain("sample", "Reads the GPUs once, over 200 ms, and prints JSON", args); err != nil {
		return err
	}
	c, err := loadOrDefault(e.config)
	if err != nil {
		return err
	}
	n, err := nvml.Open(c.NVML.Library)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(n.SampleTwice(sampleApart))
}

func runCheck(_ context.Context, e env, args []string) error {
	if err := plain("check", "Reads the configuration and reports mistakes", args); err != nil {
		return err
	}
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	fmt.Printf("%s: fine\n", e.config)
	if c.Observes() { // jobs run as written
		return nil
	}
	t := texttable.Table{Columns: texttable.Columns("VARIABLE FOR JOBS", "SHARING", "LEARNING", "OTHERS")}
	for _, name := range c.FrameworkNames() {
		if v := c.Frameworks[name]; v != (config.Variable{}) {
			t.Rows = append(t.Rows, []string{name, cmp.Or(v.Of(config.Sharing), "-"), cmp.Or(v.Of(config.Learning), "-"),
				cmp.Or(v.All, "-")})
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	_, err = t.WriteTo(os.Stdout)
	return err
}
