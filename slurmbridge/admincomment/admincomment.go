// SPDX-License-Identifier: Apache-2.0

// Package admincomment writes and reads what CARMA says of a job in its AdminComment:
// tokens of a word and a JSON object. They are for people, and nothing is booked or leased
// by them: other tools write there too.
package admincomment

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"carma/estimator/history"
	"carma/slurmbridge/jobenv"
)

// version is the version of the job's token.
const version = 1

// AppendJob appends the token that job_submit gives to each job, without fmt
// (jobenv.Carma.AppendEnv).
func AppendJob(b []byte, c *jobenv.Carma, note string) []byte {
	return append(appendJob(b, `carma={"v":`, c, note), '}')
}

func appendJob(b []byte, head string, c *jobenv.Carma, note string) []byte {
	b = strconv.AppendInt(append(b, head...), version, 10)
	b = append(append(append(b, `,"mode":"`...), c.Mode...), `","method":"`...)
	b = append(append(b, c.Method...), `","gpus":`...)
	b = strconv.AppendInt(b, int64(c.GPUs), 10)
	if c.EstMiB > 0 {
		b = strconv.AppendInt(append(b, `,"est_mib":`...), c.EstMiB, 10)
	}
	b = strconv.AppendInt(append(b, `,"reserve_mib":`...), c.ReserveMiB, 10)
	if note != "" {
		b = append(append(append(b, `,"note":"`...), plain(note)...), '"')
	}
	return b
}

const adviceWord = "carma-advice="

// AppendAdvice appends the token of a job that goes as written (config.ModeAdvise): what CARMA would book, and the
// key of the history, which no other way leads to the node. A job that would be refused has only the note.
func AppendAdvice(b []byte, c *jobenv.Carma, note string) []byte {
	if c.GPUs == 0 {
		return append(append(b, adviceWord...), object(note)...)
	}
	b = appendJob(b, adviceWord+`{"v":`, c, note)
	if c.Key != 0 {
		b = append(append(append(b, `,"key":"`...), c.Key.String()...), '"')
	}
	if c.UnreadLine > 0 {
		b = strconv.AppendInt(append(b, `,"unread":`...), int64(c.UnreadLine), 10)
	}
	return append(b, '}')
}

// Advice is what AppendAdvice wrote.
type Advice struct {
	Mode       jobenv.Mode `json:"mode"`
	Method     string      `json:"method"`
	EstMiB     int64       `json:"est_mib"`
	ReserveMiB int64       `json:"reserve_mib"`
	Note       string      `json:"note"`
	Key        string      `json:"key"`
	UnreadLine int64       `json:"unread"`
}

// mostMiB bounds the memory of a GPU: a petabyte.
const mostMiB = 1 << 30

// AdviceIn finds the last advice in a comment, CARMA's behind the text of any earlier plugin. slurmctld lets no user
// write there.
func AdviceIn(comment string) (a Advice, ok bool) {
	at := strings.LastIndex(comment, adviceWord)
	if at < 0 || json.NewDecoder(strings.NewReader(comment[at+len(adviceWord):])).Decode(&a) != nil {
		return Advice{}, false
	}
	_, isKey := history.ParseKey(a.Key)
	ok = (isKey || a.Key == "") && a.EstMiB >= 0 && a.EstMiB <= mostMiB && a.ReserveMiB >= 0 && a.ReserveMiB <= mostMiB &&
		a.UnreadLine >= 0 && len(a.Method) <= most && len(a.Note) <= most
	if !ok {
		return Advice{}, false
	}
	return a, true
}

// Note is a token that says something of a job, and nothing else.
func Note(note string) string {
	return "carma=" + object(note)
}

func object(note string) string { return fmt.Sprintf(`{"v":%d,"note":"%s"}`, version, plain(note)) }

// Why a job was requeued last.
const (
	OOM       = "oom"
	Timeslot  = "timeslot"
	MPSFault  = "mps-fault"
	Neighbour = "neighbour" // the job failed at its start while a co-located job began, ended or grew
)

const (
	retryWord = "carma-retry="
	reasonIs  = `{"reason":`
)

// Retry is the token of a job that an Epilog requeues for a reason, with the signature of
// an OOM, and one value more.
func Retry(reason, signature, key, value string) string {
	if reason == OOM {
		return fmt.Sprintf(retryWord+reasonIs+`%q,"signature":%q,%q:"%s"}`, reason, signature, key, plain(value))
	}
	return fmt.Sprintf(retryWord+reasonIs+`%q,%q:"%s"}`, reason, key, plain(value))
}

// Slot is the token of a job requeued as attempt restart for its next time slot.
func Slot(restart uint32) string {
	return fmt.Sprintf(retryWord+reasonIs+`%q,"restart":%d}`, Timeslot, restart)
}

var slots = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(` ?` + retryWord + `\` + reasonIs + `"` + Timeslot + `","restart":[0-9]+\}`)
})

// WithSlot is With for Slot. One token stands for all slots: a job may have hundreds.
func WithSlot(comment string, restart uint32) string {
	return With(slots().ReplaceAllString(comment, ""), Slot(restart))
}

// With adds a token to what others wrote in AdminComment. What they wrote with
// control characters cannot be written again as it is, and stays.
func With(comment, token string) string {
	if strings.ContainsFunc(comment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return ""
	}
	return strings.TrimSpace(comment + " " + token)
}

// Retried tells whether the job was requeued for a reason before.
func Retried(comment, reason string) bool {
	return strings.Contains(comment, reasonIs+`"`+reason+`"`)
}

var retries = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(retryWord + `\` + reasonIs + `"(` + OOM + `|` + Timeslot + `|` + MPSFault + `|` + Neighbour + `)"`)
})

// RetryReason is why the job was requeued last; empty: not by CARMA, or another tool has
// taken the token away.
func RetryReason(comment string) string {
	if all := retries().FindAllStringSubmatch(comment, -1); len(all) > 0 {
		return all[len(all)-1][1]
	}
	return ""
}

// ours begins a token.
var ours = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^| )carma(?:-retry|-advice)?=\{`) })

// Without takes all tokens out of a comment.
func Without(comment string) string {
	for from := 0; ; {
		at := ours().FindStringIndex(comment[from:])
		if at == nil {
			return comment
		}
		begin, object := from+at[0], from+at[1]-1
		var ignored json.RawMessage
		d := json.NewDecoder(strings.NewReader(comment[object:]))
		if d.Decode(&ignored) != nil { // somebody else's after all
			from = object
			continue
		}
		after := comment[object+int(d.InputOffset()):]
		comment = strings.TrimSpace(strings.TrimRight(comment[:begin], " ") + " " + strings.TrimLeft(after, " "))
		from = 0
	}
}

// most is the length of a text in a token.
const most = 100

// plain makes text fit into a token: short printable ASCII without quotes. It may
// come from a user's script or output.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\':
			return '\''
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = text[:most-3] + "..."
	}
	return text
}
