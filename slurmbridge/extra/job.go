// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Tags name users in keys. Everybody reads a node's Extra: where PrivateData hides whose jobs are
// where, a key known to the administrators alone makes the names.
type Tags struct {
	Secret []byte // empty: a user's tag is the uid
}

// Of returns a user's tag, of letters and digits.
func (t Tags) Of(uid uint32) string {
	if len(t.Secret) == 0 {
		return strconv.FormatUint(uint64(uid), 10)
	}
	m := hmac.New(sha256.New, t.Secret)
	m.Write(binary.BigEndian.AppendUint32(nil, uid))
	return hex.EncodeToString(m.Sum(nil)[:8])
}

// Ask is the constraint of a job that needs mib MiB of each of k GPUs of a node at once.
func Ask(k int, mib int64, tag string) string {
	each := ">=" + strconv.FormatInt(mib, 10)
	return Key(k) + each + "|" + UserKey(k, tag) + each
}

// AskAll is the constraint of a job for nodes of which all k GPUs are there and well.
func AskAll(k int) string { return All + ">=" + strconv.Itoa(k) }

// The errors of Join, for the user.
var (
	errSyntax = errors.New("is no constraint on a node's Extra; write KEY=VALUE, with & or |, and parentheses where " +
		"both stand side by side")
	errLong = errors.New("leaves no room for CARMA's own constraint; shorten it")
)

const (
	// mostOfJob is the longest text that slurmctld takes (job_mgr.c,
	// _test_strlen).
	mostOfJob = 1023
	// room is left for the larger numbers of a booking that is raised.
	room = 64
)

// Join adds CARMA's constraint to the constraint of the job's user, which stays in force.
func Join(users, ours string) (string, error) {
	users = strings.TrimSpace(users)
	if users == "" {
		return ours, nil
	}
	if err := check(users); err != nil {
		return "", err
	}
	both := "(" + users + ")&(" + ours + ")"
	if len(both) > mostOfJob-room {
		return "", fmt.Errorf("--extra %w", errLong)
	}
	return both, nil
}

// check reads a constraint as slurmctld does, which refuses constraints without a reason
// (src/common/extra_constraints.c, 23.11 to 26.05): leaves KEY OP VALUE, joined on each level by
// one of & (or a comma) and |.
func check(text string) error {
	p := parser{rest: text}
	p.level()
	if p.bad || p.rest != "" {
		return fmt.Errorf("--extra %.50q %w", text, errSyntax)
	}
	return nil
}

type parser struct {
	rest  string
	depth int
	bad   bool
}

// deepest is more than a person writes; slurmctld itself recurses.
const deepest = 32

func (p *parser) level() {
	if p.depth++; p.depth > deepest {
		p.bad = true
		return
	}
	defer func() { p.depth-- }()
	joined := byte(0)
	for {
		p.element()
		if p.bad || p.rest == "" || p.rest[0] == ')' {
			return
		}
		sign := p.rest[0]
		if sign == ',' {
			sign = '&'
		}
		if sign != '&' && sign != '|' || joined != 0 && joined != sign {
			p.bad = true
			return
		}
		joined, p.rest = sign, p.rest[1:]
	}
}

func (p *parser) element() {
	if strings.HasPrefix(p.rest, "(") {
		p.rest = p.rest[1:]
		if p.level(); p.bad || p.rest == "" {
			p.bad = true
			return
		}
		p.rest = p.rest[1:] // the closing parenthesis, at which a level ends
		return
	}
	n := strings.IndexAny(p.rest, ",&|()")
	if n < 0 {
		n = len(p.rest)
	}
	leaf := p.rest[:n]
	p.rest = p.rest[n:]
	at := strings.IndexAny(leaf, "<>=!")
	if at <= 0 {
		p.bad = true
		return
	}
	value := strings.TrimLeft(leaf[at:], "<>=!")
	op := leaf[at : len(leaf)-len(value)]
	switch op {
	case "=", "!=", ">", ">=", "<", "<=":
		p.bad = value == "" || strings.ContainsAny(value, "<>=!")
	default:
		p.bad = true
	}
}

// ReadTags reads the secret from a file; no path: there is none. read is os.ReadFile.
func ReadTags(path string, read func(path string) ([]byte, error)) (Tags, error) {
	if path == "" {
		return Tags{}, nil
	}
	secret, err := read(path)
	if err != nil {
		return Tags{}, fmt.Errorf("read slurm.user_key: %w", err)
	}
	if len(secret) < leastSecret {
		return Tags{}, fmt.Errorf("read slurm.user_key %s: it has %d bytes; write at least %d random ones", path, len(secret),
			leastSecret)
	}
	return Tags{Secret: secret}, nil
}

const leastSecret = 16
