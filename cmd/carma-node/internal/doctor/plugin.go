// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/sctl"
)

// PluginVersion reads which release of Slurm a job_submit plugin was built for,
// and checks for the symbols of slurmctld's loader (plugin.c, job_submit.c).
// Slurm takes a plugin of its exact release only.
func PluginVersion(path string) (sctl.Version, error) {
	return versionOf(path, "plugin_name", "plugin_type", "plugin_version", "job_submit", "job_modify")
}

// versionOf reads plugin_version of a plugin that has these symbols.
func versionOf(path string, needs ...string) (sctl.Version, error) {
	f, symbols, err := library(path, needs...)
	if err != nil {
		return sctl.Version{}, err
	}
	defer f.Close()
	at := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "plugin_version" })
	s := symbols[at]
	if int(s.Section) >= len(f.Sections) {
		return sctl.Version{}, fmt.Errorf("%s: plugin_version is in no section", path)
	}
	section, number := f.Sections[s.Section], make([]byte, 4)
	if _, err := section.ReadAt(number, int64(s.Value-section.Addr)); err != nil {
		return sctl.Version{}, fmt.Errorf("%s: read plugin_version: %w", path, err)
	}
	v := f.ByteOrder.Uint32(number) // SLURM_VERSION_NUM
	return sctl.Version{Major: int(v >> 16 & 0xff), Minor: int(v >> 8 & 0xff), Micro: int(v & 0xff)}, nil
}

// CheckLibrary checks that libcarma.so is whole and has the functions that the
// plugin calls (carma.h).
func CheckLibrary(path string) error {
	f, _, err := library(path, "carma_abi", "carma_version", "carma_configure", "carma_annotate", "carma_tick",
		"carma_recovery")
	if err == nil {
		f.Close()
	}
	return err
}

func library(path string, needs ...string) (*elf.File, []elf.Symbol, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: no symbols, or only a part of the file: %w", path, err)
	}
	var lacks []string
	for _, name := range needs {
		if !slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name && s.Section != elf.SHN_UNDEF }) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		f.Close()
		return nil, nil, fmt.Errorf("%s: does not define %s", path, strings.Join(lacks, ", "))
	}
	return f, symbols, nil
}
