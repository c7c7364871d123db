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
	"slices"
	"strings"
	"sync"

	"carma/slurmbridge/admincomment"
)

// In slurmdbd a job's records stand in its AdminComment: "carma1:" and the JSON of
// its attempts, gzip, base32: sacctmgr of Slurm 22.05 writes all in lower case (tried;
// job_functions.c hands it to strip_quotes with make_lower). Other tools write there too. Their text stays in
// front: jobstats' "JS1:" is read from the beginning of the comment to its end, by Python's base64.b64decode,
// which passes over the characters unknown to base64. Debian 12's stops at padding, Debian 13's (3.13.5) reads
// on (tried). So behind "JS1:" the records stand in such characters alone, mark included.
const (
	commentMark = "carma1:"
	symbolsMark = "!~!"
)

// formerStop is the text that stood between "JS1:" and commentMark before symbols did.
const formerStop = " AA== "

// lettersOnly is the same in upper and lower case.
var lettersOnly = base32.HexEncoding.WithPadding(base32.NoPadding)

// symbols are 16 characters for the halves of a byte: none of base64, none that
// sacctmgr, sacct -P or a shell's word would take for its own.
const symbols = "!#$&*-.:;<>?@^_~"

// maxComment bounds the unpacked records; a job of 1,000 nodes has a tenth of it.
const maxComment = 8 << 20

// MergeComment returns the comment of a job with records put into it, in the place
// of the old records of the same attempts. Records without a place there go.
func MergeComment(job uint32, c Comment, list []Attempt) (string, error) {
	old, others, err := splitComment(c.Text)
	if err != nil {
		old = nil // spoiled: only the new records are left
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
	if others != "" {
		others += " "
	}
	if strings.HasPrefix(others, "JS1:") {
		return others + symbolsMark + toSymbols(packed.Bytes()), nil
	}
	return others + commentMark + strings.ToLower(lettersOnly.EncodeToString(packed.Bytes())), nil
}

func toSymbols(packed []byte) string {
	word := make([]byte, 0, 2*len(packed))
	for _, b := range packed {
		word = append(word, symbols[b>>4], symbols[b&15])
	}
	return string(word)
}

func fromSymbols(word string) ([]byte, error) {
	if len(word)%2 != 0 {
		return nil, errors.New("half a byte is missing")
	}
	packed := make([]byte, len(word)/2)
	for i := range word {
		half := strings.IndexByte(symbols, word[i])
		if half < 0 {
			return nil, fmt.Errorf("%q is none of %s", word[i], symbols)
		}
		packed[i/2] = packed[i/2]<<4 | byte(half)
	}
	return packed, nil
}

// ParseComment returns the records in the comment of a job; none if there are none. A record
// of another job than the comment's is refused: the record may be anybody's words.
func ParseComment(job uint32, c Comment) (list []Attempt, refused int, err error) {
	list, _, err = splitComment(c.Text)
	n := len(list)
	list = slices.DeleteFunc(list, func(a Attempt) bool { return !c.mayHold(job, a) })
	return list, n - len(list), err
}

// mayHold tells whether a record has its place in the comment of a job: its own, or the
// comment of the task with the id of the array (carrier).
func (c Comment) mayHold(job uint32, a Attempt) bool {
	return a.JobID == job || a.JobID == c.ArrayJobID && a.JobID != 0
}

// splitComment takes the records out of a comment.
func splitComment(comment string) (list []Attempt, others string, err error) {
	mark, decode := commentMark, func(word string) ([]byte, error) {
		return lettersOnly.DecodeString(strings.ToUpper(word))
	}
	i := strings.LastIndex(comment, mark)
	// The mark may occur in the word too: a blank before the mark counts.
	if at := strings.LastIndex(comment, " "+symbolsMark); at > i {
		i, mark, decode = at+1, symbolsMark, fromSymbols
	}
	if i < 0 {
		return nil, admincomment.Without(comment), nil
	}
	others = strings.TrimRight(strings.TrimSuffix(comment[:i], formerStop), " ")
	word, after, _ := strings.Cut(comment[i+len(mark):], " ")
	if after != "" { // somebody has added text
		others = strings.TrimSpace(others + " " + after)
	}
	// The records say more, and sacctmgr (22.05) would make its quotes into backticks.
	others = admincomment.Without(others)
	packed, err := decode(word)
	var text []byte
	if err == nil {
		text, err = unpack(packed)
	}
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

func unpack(packed []byte) ([]byte, error) {
	z := unpackers.Get().(*gzip.Reader)
	defer unpackers.Put(z)
	if err := z.Reset(bytes.NewReader(packed)); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, maxComment))
}
