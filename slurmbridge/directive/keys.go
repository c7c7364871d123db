// SPDX-License-Identifier: Apache-2.0

package directive

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// key is one word that a #CARMA line may hold.
type key struct {
	flag    bool   // stands alone, without a value
	alias   string // shares its place with another key: on and off
	example string
	set     func(d *Directive, value string) error
	clear   func(d *Directive) // what set leaves of an earlier value; nil: nothing
}

func (k key) name(own string) string {
	if k.alias != "" {
		return k.alias
	}
	return own
}

// Values of the keys that take one word of a list. What each means for memory
// is the estimator's business.
var (
	Optimizers = []string{"adam", "adamw", "adamw_hf", "adam8bit", "sgd", "sgdm", "adagrad", "adadelta", "rmsprop",
		"adafactor"}
	Precisions = []string{"fp32", "amp", "bf16", "fp16"}
	Parallels  = []string{"none", "dp", "ddp", "fsdp", "zero1", "zero2", "zero3"}
	Attentions = []string{"eager", "sdpa", "flash"}
	Placements = policy.Placements()
)

var keys = map[string]key{
	"on": {flag: true, alias: "on", set: func(*Directive, string) error { return nil },
		clear: func(d *Directive) { d.Off = false }},
	"off": {flag: true, alias: "on", set: func(d *Directive, _ string) error { d.Off = true; return nil }},
	"mem": {example: "mem=12G", set: func(d *Directive, v string) (err error) {
		d.MemMiB, err = ParseMiB(v)
		return err
	}},
	"policy": {example: "policy=shared or policy=exclusive", set: func(d *Directive, v string) error {
		d.Policy = Policy(v)
		return oneOf(v, append([]string{string(PolicyShared), string(PolicyExclusive)}, Placements...))
	}},
	"batch": {example: "batch=32", set: func(d *Directive, v string) error { return count(&d.Batch, v, 1<<24) }},
	"seq":   {example: "seq=512", set: func(d *Directive, v string) error { return count(&d.Seq, v, 1<<24) }},
	"smact": {example: "smact=60", set: func(d *Directive, v string) error { return count(&d.SMActPct, v, 100) }},
	"slowdown": {example: "slowdown=1.3", set: func(d *Directive, v string) (err error) {
		d.MaxSlowdown, err = slowdown(v)
		return err
	}},
	"input": {example: "input=3x224x224", set: func(d *Directive, v string) error { return shape(&d.Input, v) },
		clear: func(d *Directive) { d.Input = [3]int{} }},
	"optim": {example: "optim=adamw", set: func(d *Directive, v string) error {
		d.Optimizer = v
		return oneOf(v, Optimizers)
	}},
	"foreach": {example: "foreach=0 or foreach=1", set: func(d *Directive, v string) error {
		b, err := bit(v)
		d.Foreach = &b
		return err
	}},
	"precision": {example: "precision=bf16", set: func(d *Directive, v string) error {
		d.Precision = v
		return oneOf(v, Precisions)
	}},
	"parallel": {example: "parallel=ddp", set: func(d *Directive, v string) error {
		d.Parallel = v
		return oneOf(v, Parallels)
	}},
	"grad_ckpt": {example: "grad_ckpt=1", set: func(d *Directive, v string) (err error) {
		d.GradCkpt, err = bit(v)
		return err
	}},
	"dropout": {example: "dropout=0 or dropout=1", set: func(d *Directive, v string) error {
		b, err := bit(v)
		d.Dropout = &b
		return err
	}},
	"dynamic_shapes": {example: "dynamic_shapes=1", set: func(d *Directive, v string) (err error) {
		d.Dynamic, err = bit(v)
		return err
	}},
	"attn": {example: "attn=sdpa", set: func(d *Directive, v string) error {
		d.Attention = v
		return oneOf(v, Attentions)
	}},
	"signal": {example: "signal=USR1@300 or signal=B:USR1@300", set: func(d *Directive, v string) (err error) {
		d.Signal, err = signal(v)
		return err
	}},
	"requeue": {example: "requeue=timeout or requeue=no", set: func(d *Directive, v string) error {
		d.Requeue = jobenv.Requeue(v)
		return oneOf(v, []string{string(jobenv.RequeueTimeout), string(jobenv.RequeueNo)})
	}},
	"job": {example: "job=resnet50-large", set: func(d *Directive, v string) error {
		d.Job = v
		return name(v)
	}},
	"vars": {example: "vars=MODEL,SIZE", set: func(d *Directive, v string) (err error) {
		d.Vars, err = variables(v)
		return err
	}},
	"params": {example: "params=110M", set: func(d *Directive, v string) (err error) {
		d.Params, err = parameters(v)
		return err
	}},
}

var keyList = func() string {
	names := make([]string, 0, len(keys))
	for k := range keys {
		names = append(names, k)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}()

// maxMiB is above any GPU there is; a larger figure is a slip of the pen.
const maxMiB = 4 << 20 // 4 TiB

// ParseMiB reads an amount of GPU memory as Slurm writes memory: a number with
// an optional suffix K, M, G or T (powers of 1024; "B" or "iB" may follow); a
// plain number is MiB. The result is at least 1 and rounded up to whole MiB.
func ParseMiB(s string) (int64, error) {
	digits := strings.TrimRight(s, "KMGTkmgtiB")
	unit, suffix := 1.0, s[len(digits):]
	if suffix != "" {
		power := strings.IndexByte("kmgt", suffix[0]|0x20) // lower case
		if power < 0 || !slices.Contains([]string{"", "B", "iB"}, suffix[1:]) {
			return 0, errors.New("not a size")
		}
		unit = math.Pow(1024, float64(power-1))
	}
	if !plainNumber(digits) {
		return 0, errors.New("not a size")
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, errors.New("not a size")
	}
	switch mib := f * unit; {
	case mib <= 0:
		return 0, errors.New("must be more than 0")
	case mib > maxMiB:
		return 0, errors.New("more than any GPU has")
	default:
		return int64(math.Ceil(mib)), nil
	}
}

// plainNumber keeps out what ParseFloat takes beyond decimal numbers: signs,
// exponents, hexadecimal, "inf", "nan", underscores.
func plainNumber(s string) bool {
	return s != "" && len(s) <= 20 && strings.Trim(s, "0123456789.") == ""
}

func count(to *int, s string, most int) error {
	n, err := strconv.Atoi(s)
	switch {
	case err != nil:
		return errors.New("not a whole number")
	case n < 1:
		return errors.New("must be at least 1")
	case n > most:
		return fmt.Errorf("must be at most %d", most)
	}
	*to = n
	return nil
}

// slowdown reads how many times as long as alone a job may take.
func slowdown(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case !plainNumber(s) || err != nil:
		return 0, errors.New("not a number")
	case f < 1.0005:
		return 0, errors.New("must be above 1; a job that nobody may slow has policy=exclusive")
	case f > 100:
		return 0, errors.New("must be at most 100")
	}
	return math.Round(f*1000) / 1000, nil
}

func shape(to *[3]int, s string) error {
	parts := strings.Split(s, "x")
	if len(parts) > len(to) {
		return errors.New("not the size of a sample: features, channels x length, or channels x height x width")
	}
	for i, p := range parts {
		if err := count(&to[i], p, 1<<20); err != nil {
			return err
		}
	}
	return nil
}

func bit(s string) (bool, error) {
	if s != "0" && s != "1" {
		return false, errors.New("neither 0 nor 1")
	}
	return s == "1", nil
}

// maxName is how long the name of a run, or of a variable, may be.
const maxName = 64

const (
	letters         = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	nameLetters     = letters + "._-"
	variableLetters = letters + "_"
)

func name(s string) error {
	for i := range len(s) {
		if strings.IndexByte(nameLetters, s[i]) < 0 {
			return errors.New("may have letters, digits and ._- only")
		}
	}
	if s == "" || len(s) > maxName {
		return fmt.Errorf("must have 1 to %d characters", maxName)
	}
	return nil
}

// maxVars is how many variables may tell runs apart.
const maxVars = 8

// variables reads names of environment variables, and returns them in order.
func variables(s string) ([]string, error) {
	names := strings.Split(s, ",")
	if len(names) > maxVars {
		return nil, fmt.Errorf("must have 1 to %d names", maxVars)
	}
	slices.Sort(names)
	for i, n := range names {
		switch {
		case n == "" || len(n) > maxName || strings.Trim(n, variableLetters) != "" || n[0] >= '0' && n[0] <= '9':
			return nil, fmt.Errorf("a variable has a name of letters, digits and _, at most %d, and no digit first", maxName)
		case i > 0 && n == names[i-1]:
			return nil, errors.New("names a variable twice")
		}
	}
	return names, nil
}

func oneOf(s string, values []string) error {
	if !slices.Contains(values, s) {
		return errors.New("not one of " + strings.Join(values, ", "))
	}
	return nil
}

// parameters reads a number of model parameters: 66362880, 66.4M, 7B.
func parameters(s string) (int64, error) {
	digits := strings.TrimRight(s, "kKMGB")
	unit, ok := map[string]float64{"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}[s[len(digits):]]
	if !ok || !plainNumber(digits) {
		return 0, errors.New("not a number of parameters")
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || f*unit < 1 || f*unit > 1e13 {
		return 0, errors.New("not a number of parameters between 1 and 10,000G")
	}
	return int64(f * unit), nil
}

// signals are those that a program can catch and that mean nothing else to it.
var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT,
	"TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// signal reads what sbatch --signal takes ([B:]NAME[@SECONDS], 60 s by default;
// src/common/proc_args.c, get_signal_opts), with names for signals only.
func signal(v string) (s Signal, err error) {
	v, s.Batch = strings.CutPrefix(v, "B:")
	name, seconds, timed := strings.Cut(v, "@")
	number, ok := signals[strings.TrimPrefix(name, "SIG")]
	if !ok {
		return s, errors.New("not one of HUP, INT, QUIT, TERM, USR1, USR2")
	}
	s.Number, s.Seconds = int(number), 60
	if timed {
		err = count(&s.Seconds, seconds, 1<<16-1) // job_desc_msg_t.warn_time
	}
	return s, err
}
