// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// fields is the number of NUL-ended fields before the script (carma.h).
const fields = 19

// maxFields is far above any lists of GRES and partitions with the script's arguments: a list of a
// megabyte takes 300 ms, in which nobody else's job is booked. The job is refused: left unchanged,
// the job could name counts of CARMA's.
const maxFields = 16 << 10

var errTooLong = errors.New("the lists of GRES and partitions are longer than 16 KiB; shorten them")

// answerTo is carma_annotate without C.
func answerTo(ask []byte) string {
	job, err := readAsk(ask)
	if errors.Is(err, errTooLong) {
		return "refuse carma: " + oneLine(err.Error()) + "\n"
	} else if err != nil {
		return "leave " + oneLine(err.Error()) + "\n"
	}
	fault(job.Script)
	current, err := site.current()
	if err != nil {
		return "leave " + oneLine(err.Error()) + "\n"
	}
	if site.mode == config.ModeObserve {
		return ""
	}
	a, err := current.Annotate(job)
	if site.mode == config.ModeAdvise {
		return advice(&a, err)
	}
	if err != nil {
		return "refuse carma: " + oneLine(err.Error()) + "\n"
	}
	if !a.Managed {
		return ""
	}
	return lines(&job, &a)
}

func readAsk(ask []byte) (annotate.Job, error) {
	var f [fields]string
	script := ask
	for i := range f {
		n := bytes.IndexByte(script, 0)
		if n < 0 {
			return annotate.Job{}, fmt.Errorf("libcarma: ask has %d of %d fields", i, fields)
		}
		script = script[n+1:]
		if len(ask)-len(script) > maxFields {
			return annotate.Job{}, errTooLong
		}
	}
	head := string(ask[:len(ask)-len(script)])
	for i := range f {
		f[i], head, _ = strings.Cut(head, "\x00")
	}
	// A list with a line break could forge lines of the answer. The shim refuses the job (text.c);
	// the check here holds without the shim too. The script, its arguments and what stands beside
	// it are free text: a wrong key is refused in printable words, and values are hashed only.
	for i, text := range f[:fields-4] { // --extra, too, as a line of the answer
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return annotate.Job{}, fmt.Errorf("libcarma: control character in field %d of ask", i)
		}
	}
	var n [9]uint32
	for i := range n {
		v, err := strconv.ParseUint(f[5+i], 10, 32)
		if err != nil {
			return annotate.Job{}, fmt.Errorf("libcarma: read field %d of ask: %w", 5+i, err)
		}
		n[i] = uint32(v)
	}
	return annotate.Job{
		Partition: f[0],
		TRES:      annotate.TRES{PerNode: f[1], PerJob: f[2], PerSocket: f[3], PerTask: f[4]},
		MinNodes:  n[0], MaxNodes: n[6], Tasks: n[1], TasksPerNode: n[2], SocketsPerNode: n[3],
		UID: n[4], TimeLimit: n[5], TaskGPUs: n[7], Constrains: n[8] == 1, Extra: f[14], Option: f[15], Variable: f[16],
		Values: f[17], Args: f[18], Script: script,
	}, nil
}

func wants(a *annotate.Annotation) string { return "vars " + strings.Join(a.Wants, ",") + "\n" }

func lines(job *annotate.Job, a *annotate.Annotation) string {
	if len(a.Wants) > 0 {
		return wants(a)
	}
	b, was := make([]byte, 0, 1024), job.TRES
	for _, l := range []struct{ word, was, is string }{
		{"tres_per_node ", was.PerNode, a.TRES.PerNode},
		{"tres_per_job ", was.PerJob, a.TRES.PerJob},
		{"tres_per_socket ", was.PerSocket, a.TRES.PerSocket},
		{"tres_per_task ", was.PerTask, a.TRES.PerTask},
		{"extra ", job.Extra, a.Extra},
	} {
		if l.was != l.is {
			b = append(append(append(b, l.word...), l.is...), '\n')
		}
	}
	if a.TimeLimitMin > 0 {
		b = fmt.Appendf(b, "time_limit %d\n", a.TimeLimitMin)
	}
	if s := a.Signal; s.Number > 0 {
		to := "steps"
		if s.Batch {
			to = "batch"
		}
		b = fmt.Appendf(b, "signal %d %d %s\n", s.Number, s.Seconds, to)
	}
	if a.Requeue == jobenv.RequeueTimeout {
		b = append(b, "requeue 1\n"...)
	}
	if tell := cmp.Or(a.Unread, a.Advice); tell != "" {
		b = append(append(append(b, "tell carma: "...), oneLine(tell)...), '\n')
	}
	b = a.AppendEnv(b, "env ", "\n")
	if a.GPUs > 0 {
		b = append(b, "time "+jobenv.EnvSubmit+"\ncomment "...)
		b = append(admincomment.AppendJob(b, &a.Carma, cmp.Or(a.Unread, a.Note)), '\n')
	}
	return string(b)
}

// advice is the answer for a job that goes as written.
func advice(a *annotate.Annotation, err error) string {
	if len(a.Wants) > 0 {
		return wants(a)
	}
	tell, note := a.Unread, cmp.Or(a.Unread, a.Note)
	switch {
	case err != nil:
		note = oneLine(err.Error())
		tell = "sharing would refuse this job: " + note
	case a.GPUs == 0:
		return ""
	}
	var b []byte
	if tell != "" {
		b = append(append(append(b, "tell carma: "...), oneLine(tell)...), '\n')
	}
	return string(append(admincomment.AppendAdvice(append(b, "comment "...), &a.Carma, note), '\n'))
}

// oneLine makes text fit for a line of a log: printable, bounded.
func oneLine(text string) string {
	const most = 500
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}
