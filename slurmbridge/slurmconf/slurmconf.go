// SPDX-License-Identifier: Apache-2.0

// Package slurmconf reads slurm.conf and gres.conf as far as CARMA looks at
// them: settings, nodes and partitions (man slurm.conf, 22.05 to 26.05).
package slurmconf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"carma/slurmbridge/hostlist"
)

// File is a configuration with what it includes.
type File struct {
	Settings   map[string]string // by name in lower case; the last line counts
	Hosts      []string          // SlurmctldHost= lines, of each controller a line
	Nodes      []Record          // NodeName= lines, without NodeName=DEFAULT
	Partitions []Record          // PartitionName= lines, without PartitionName=DEFAULT
	Other      []Record          // Name= lines of gres.conf
}

// Record is one line of several words, with the DEFAULT line's under them.
type Record struct {
	Name   string            // NodeName, PartitionName or Name
	Values map[string]string // by key in lower case
	Words  []string          // "Key=value" of its own line, as written, without the first
}

// Get returns a value of the record; the key's case does not matter.
func (r Record) Get(key string) string { return r.Values[strings.ToLower(key)] }

// Setting returns a setting of the file; the name's case does not matter.
func (f File) Setting(name string) string { return f.Settings[strings.ToLower(name)] }

// HasNode tells whether a partition has a node.
func (r Record) HasNode(node string) bool {
	nodes := r.Get("Nodes")
	return strings.EqualFold(nodes, "ALL") || hostlist.Contains(nodes, node)
}

// GPUs are the records of gres.conf for a node's gpu.
func (f File) GPUs(node string) (list []Record) {
	for _, r := range f.Other {
		name := r.Get("Name")
		if name == "" { // the line begins with Name=
			name = r.Name
		} else if !hostlist.Contains(r.Name, node) {
			continue
		}
		if name == "gpu" {
			list = append(list, r)
		}
	}
	return list
}

// Files are the device files of a record of gres.conf.
func (r Record) Files() []string {
	files, _ := hostlist.Expand(r.Get("File"))
	return files
}

// mostIncludes stops files that include each other.
const mostIncludes = 50

// Read reads slurm.conf or gres.conf; what it includes stands beside it unless the path is
// absolute.
func Read(path string) (File, error) { return read(path, func(text string) string { return text }) }

// Settings reads the settings of a file, and of those that it includes: without the lines of
// nodes, partitions and the like, which may be thousands, and each job's Prolog reads them.
func Settings(path string) (File, error) {
	return read(path, func(text string) string {
		var b strings.Builder
		for line := range strings.Lines(text) {
			key, _, _ := strings.Cut(line, "=")
			if key = strings.ToLower(key); !strings.HasSuffix(key, "name") || strings.HasSuffix(key, "clustername") {
				b.WriteString(line)
			}
		}
		return b.String()
	})
}

// read reads as much of a file as keep leaves.
func read(path string, keep func(text string) string) (File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return File{}, err
	}
	f, err := Parse(keep(string(text)), func(name string) (string, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		text, err := os.ReadFile(name)
		return keep(string(text)), err
	})
	if err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// SpoolDir is SlurmdSpoolDir of a node on a machine (slurmd.c, _read_config); empty: the file
// names none.
func (f File) SpoolDir(node, host string) string {
	return strings.NewReplacer("%h", host, "%n", node).Replace(f.Setting("SlurmdSpoolDir"))
}

// Parse reads the text of a file. include returns the text of a file that an
// Include line names; nil: such lines are passed over.
func Parse(text string, include func(name string) (string, error)) (File, error) {
	p := parser{file: File{Settings: map[string]string{}}, include: include, defaults: map[string]map[string]string{}}
	err := p.read(text)
	for _, partition := range p.file.Partitions {
		if nodes := partition.Values["nodes"]; nodes != "" && len(p.sets) > 0 {
			partition.Values["nodes"] = p.withoutSets(nodes)
		}
	}
	return p.file, err
}

// withoutSets has the nodes of each NodeSet= (slurm.conf(5)) in place of the set's name.
func (p *parser) withoutSets(nodes string) string {
	var list []string
	for _, name := range hostlist.Split(nodes) {
		known := false
		for _, set := range p.sets {
			if set.Name != name {
				continue
			}
			known = true
			if own := set.Get("Nodes"); own != "" {
				list = append(list, own)
			}
			for _, n := range p.file.Nodes {
				features := strings.FieldsFunc(n.Get("Feature")+","+n.Get("Features"), func(r rune) bool { return r == ',' })
				if f := set.Get("Feature"); f != "" && slices.Contains(features, f) {
					list = append(list, n.Name)
				}
			}
		}
		if !known {
			list = append(list, name)
		}
	}
	return strings.Join(list, ",")
}

type parser struct {
	file     File
	include  func(string) (string, error)
	includes int
	defaults map[string]map[string]string // of DEFAULT lines, by first key
	sets     []Record                     // NodeSet= lines
}

func (p *parser) read(text string) error {
	var line string
	for part := range strings.Lines(text) {
		part = strings.TrimRight(uncomment(part), " \t\r\n")
		if whole, more := strings.CutSuffix(part, `\`); more {
			line += whole
			continue
		}
		if err := p.line(line + part); err != nil {
			return err
		}
		line = ""
	}
	return p.line(line)
}

// uncomment cuts at a # that no backslash stands before.
func uncomment(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] != '\\') {
			return line[:i]
		}
	}
	return line
}

func (p *parser) line(line string) error {
	line = strings.TrimSpace(line)
	if len(line) > 8 && strings.EqualFold(line[:7], "include") && (line[7] == ' ' || line[7] == '\t') {
		return p.includeFile(strings.TrimSpace(line[8:]))
	}
	list := pairs(line)
	if len(list) == 0 {
		return nil
	}
	switch first := list[0]; first.key {
	case "nodename":
		// gres.conf begins its lines so, too.
		if r := p.record(list); r.Get("Name") != "" {
			p.file.Other = append(p.file.Other, r)
		} else if r.Name != "DEFAULT" {
			p.file.Nodes = append(p.file.Nodes, r)
		}
	case "partitionname":
		if r := p.record(list); r.Name != "DEFAULT" {
			p.file.Partitions = append(p.file.Partitions, r)
		}
	case "nodeset":
		p.sets = append(p.sets, p.record(list))
	case "name":
		p.file.Other = append(p.file.Other, p.record(list))
	default:
		for _, w := range list {
			p.file.Settings[w.key] = w.value
			if w.key == "slurmctldhost" {
				p.file.Hosts = append(p.file.Hosts, w.value)
			}
		}
	}
	return nil
}

func (p *parser) record(list []pair) Record {
	r := Record{Name: list[0].value, Values: map[string]string{}}
	kind := list[0].key
	for k, v := range p.defaults[kind] {
		r.Values[k] = v
	}
	for _, w := range list[1:] {
		r.Values[w.key] = w.value
		r.Words = append(r.Words, w.text)
	}
	if strings.EqualFold(r.Name, "DEFAULT") {
		r.Name = "DEFAULT"
		p.defaults[kind] = r.Values
	}
	return r
}

func (p *parser) includeFile(name string) error {
	if p.include == nil {
		return nil
	}
	if p.includes++; p.includes > mostIncludes {
		return fmt.Errorf("include %s: more than %d files; do they include each other?", name, mostIncludes)
	}
	// The only modifier of Include (slurm.conf(5); parse_config.c, 22.05 to 26.05).
	name = strings.ReplaceAll(name, "%c", strings.ToLower(p.file.Setting("ClusterName")))
	text, err := p.include(name)
	if err != nil {
		return fmt.Errorf("include %s: %w", name, err)
	}
	return p.read(text)
}

type pair struct{ key, value, text string }

// pairs splits "Key=value Key="two words"" into its words. A word without "=" is
// passed over.
func pairs(line string) []pair {
	var list []pair
	for line = strings.TrimLeft(line, " \t"); line != ""; line = strings.TrimLeft(line, " \t") {
		end := strings.IndexAny(line, "= \t")
		if end < 0 {
			return list
		}
		rest, ok := strings.CutPrefix(strings.TrimLeft(line[end:], " \t"), "=")
		if !ok {
			line = line[end:]
			continue
		}
		name := strings.TrimRight(line[:end], "+-")
		key := strings.ToLower(name)
		line = strings.TrimLeft(rest, " \t")
		var value, text string
		if rest, quoted := strings.CutPrefix(line, `"`); quoted {
			value, line, _ = strings.Cut(rest, `"`)
			text = `"` + value + `"`
		} else if end = strings.IndexAny(line, " \t"); end >= 0 {
			value, line = line[:end], line[end:]
		} else {
			value, line = line, ""
		}
		if text == "" {
			text = value
		}
		if key != "" {
			list = append(list, pair{key, value, name + "=" + text})
		}
	}
	return list
}

// Running reads the output of `scontrol show config` into settings: lines
// "Name = value", where (null) and N/A are nothing.
func Running(text string) map[string]string {
	settings := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "Configuration data as of") {
			continue
		}
		value = strings.TrimSpace(value)
		if value == "(null)" || value == "N/A" {
			value = ""
		}
		settings[strings.ToLower(strings.TrimSpace(name))] = value
	}
	return settings
}
