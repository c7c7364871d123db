// SPDX-License-Identifier: Apache-2.0

package db

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// In slurmdbd a job's records stand in its AdminComment: "carma1:" and the JSON of
// its attempts, gzip, base32: sacctmgr of Slurm 22.05 writes all in lower case (tried;
// job_functions.c hands it to strip_quotes with make_lower). Other tools write there too. What they wrote stays in
// front: jobstats' "JS1:" is read from the beginning of the comment to its end, by
// Python's base64.b64decode and gzip.decompress. These ignore what comes after
// padding, and zero bytes after the end; "AA==" is a zero byte and padding.
const (
	commentMark = "carma1:"
	commentStop = " AA== "
)

// lettersOnly is the same in upper and lower case.
var lettersOnly = base32.HexEncoding.WithPadding(base32.NoPadding)

// maxComment bounds what is unpacked; a job of 1,000 nodes has a tenth of it.
const maxComment = 8 << 20

// MergeComment returns the comment of a job with records put into it, those of the same
// attempt in the place of the old ones. Records that have no place there go.
func MergeComment(job uint32, c Comment, list []Attempt) (string, error) {
	old, others, err := splitComment(c.Text)
	if err != nil {
		old = nil // spoiled: the new ones are what there is
	}
	for _, a := range list {
		same := func(o Attempt) bool { return o.JobID == a.JobID && o.Restart == a.Restart && o.Node == a.Node }
		old = append(slices.DeleteFunc(old, same), a)
	}
	old = slices.DeleteFunc(old, func(a Attempt) bool { return !c.mayHold(job, a) })
	slices.SortFunc(old, func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Restart, b.Restart), cmp.Compare(a.Node, b.Node))
	})
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		err = errors.Join(json.NewEncoder(z).Encode(old), z.Close())
	}
	if err != nil {
		return "", fmt.Errorf("pack records: %w", err)
	}
	switch {
	case strings.HasPrefix(others, "JS1:"):
		others += commentStop
	case others != "":
		others += " "
	}
	return others + commentMark + strings.ToLower(lettersOnly.EncodeToString(packed.Bytes())), nil
}

// ParseComment returns the records in the comment of a job; none if there are none. A record
// of a job whose comment this is not is refused: it may be anybody's words.
func ParseComment(job uint32, c Comment) (list []Attempt, refused int, err error) {
	list, _, err = splitComment(c.Text)
	n := len(list)
	list = slices.DeleteFunc(list, func(a Attempt) bool { return !c.mayHold(job, a) })
	return list, n - len(list), err
}

// mayHold tells whether a record has its place in the comment of a job: its own, or that of
// the task that has the id of the array (carrier).
func (c Comment) mayHold(job uint32, a Attempt) bool {
	return a.JobID == job || a.JobID == c.ArrayJobID && a.JobID != 0
}

// splitComment takes the records out of a comment.
func splitComment(comment string) (list []Attempt, others string, err error) {
	i := strings.LastIndex(comment, commentMark)
	if i < 0 {
		return nil, withoutHints(comment), nil
	}
	others = strings.TrimRight(strings.TrimSuffix(comment[:i], commentStop), " ")
	word, after, _ := strings.Cut(comment[i+len(commentMark):], " ")
	if after != "" { // somebody has added to it
		others = strings.TrimSpace(others + " " + after)
	}
	others = withoutHints(others)
	text, err := unpack(word)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, others, fmt.Errorf("unpack records: %w", err)
	}
	for i := range list {
		list[i].Total = TotalOf(list[i].GPUs)
	}
	return list, others, nil
}

// unpackers are gzip readers to be used again: a new one takes longer than its work.
var unpackers = sync.Pool{New: func() any { return new(gzip.Reader) }}

func unpack(word string) ([]byte, error) {
	packed, err := lettersOnly.DecodeString(strings.ToUpper(word))
	if err != nil {
		return nil, err
	}
	z := unpackers.Get().(*gzip.Reader)
	defer unpackers.Put(z)
	if err := z.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, maxComment))
}

// ours begins what CARMA itself wrote for people: job_submit (annotate.Comment) and the
// Epilog of a job that came back (prolog, retryToken).
var ours = regexp.MustCompile(`(?:^| )carma(?:-retry)?=\{`)

// withoutHints takes away what CARMA wrote for people: the records say more, and
// sacctmgr (22.05) would make its quotes into backticks.
func withoutHints(comment string) string {
	for from := 0; ; {
		at := ours.FindStringIndex(comment[from:])
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
