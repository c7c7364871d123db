// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"carma/db/texttable"
	"carma/slurmbridge/version"
)

// PrintJSON prints findings for programs (carma.doctor/1, docs/json.md).
func PrintJSON(w io.Writer, findings []Finding) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{"schema": "carma.doctor/1", "version": version.String(),
		"worst": Worst(findings), "findings": findings})
}

// Print prints a line for each finding, and below it what to do.
func Print(w io.Writer, findings []Finding, style texttable.Style) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Part))
	}
	paint := map[Level]string{Pass: texttable.Green, Warn: texttable.Yellow, Fail: texttable.Red}
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s  %-*s  %s\n", style.Paint(paint[f.Level], string(f.Level)), width, f.Part, f.What)
		if f.Do != "" {
			fmt.Fprintf(&b, "      %-*s  -> %s\n", width, "", f.Do)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
