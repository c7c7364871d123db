// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CPU is where a logical CPU sits.
type CPU struct{ Socket, Core int }

// ReadCPUs reads where the logical CPUs of a machine sit, from /sys/devices/system/cpu.
func ReadCPUs(dir string) (map[int]CPU, error) {
	found, err := filepath.Glob(filepath.Join(dir, "cpu[0-9]*", "topology"))
	if err != nil {
		return nil, err
	}
	cpus := map[int]CPU{}
	for _, topology := range found {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(topology)), "cpu"))
		if err != nil {
			continue
		}
		var c CPU
		for name, to := range map[string]*int{"physical_package_id": &c.Socket, "core_id": &c.Core} {
			text, err := os.ReadFile(filepath.Join(topology, name))
			if err == nil {
				*to, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			if err != nil {
				return nil, fmt.Errorf("read where CPU %d sits: %w", n, err)
			}
		}
		cpus[n] = c
	}
	return cpus, nil
}

// cores numbers the cores of a machine as Slurm does in Cores= of gres.conf: one socket
// after the other, and in each by the lowest logical CPU (gres.conf(5); hwloc's logical
// order), whatever threads they have.
func cores(cpus map[int]CPU) map[CPU]int {
	first, socket := map[CPU]int{}, map[int]int{}
	for n, c := range cpus {
		if at, ok := first[c]; !ok || n < at {
			first[c] = n
		}
		if at, ok := socket[c.Socket]; !ok || n < at {
			socket[c.Socket] = n
		}
	}
	var order []CPU
	for c := range first {
		order = append(order, c)
	}
	slices.SortFunc(order, func(a, b CPU) int {
		if a.Socket != b.Socket {
			return socket[a.Socket] - socket[b.Socket]
		}
		return first[a] - first[b]
	})
	number := map[CPU]int{}
	for i, c := range order {
		number[c] = i
	}
	return number
}

// Cores are the cores of logical CPUs in the notation of gres.conf, as 0-15; empty if they
// are not known, or if they are all that there are: that is no affinity.
func Cores(near []int, cpus map[int]CPU) string {
	number := cores(cpus)
	var list []int
	for _, n := range near {
		if c, ok := cpus[n]; ok {
			list = append(list, number[c])
		}
	}
	slices.Sort(list)
	if list = slices.Compact(list); len(list) == len(number) {
		return ""
	}
	return ranges(list)
}

// ranges writes sorted numbers as 0-3,8.
func ranges(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		last := i
		for last+1 < len(list) && list[last+1] == list[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(list[i]))
		if last > i {
			fmt.Fprintf(&b, "-%d", list[last])
		}
		i = last + 1
	}
	return b.String()
}

// GPUType is a GPU's type as scripts name it, in gpu:a100:1: the model's own name without
// the maker, form and memory.
func GPUType(model string) string {
	words := strings.Fields(strings.ToLower(model))
	for len(words) > 1 && slices.Contains([]string{"nvidia", "tesla", "quadro", "geforce"}, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(words[0], "-")
	if len(words) > 1 && slices.Contains([]string{"rtx", "gtx", "titan"}, name) { // rtx a6000, rtx 3090 ti
		name += "_" + strings.Join(words[1:], "_")
		name, _, _ = strings.Cut(name, "_generation")
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return -1
	}, name)
}
