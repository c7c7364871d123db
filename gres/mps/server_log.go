// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// fatal is what a server writes when a client has made an error that ends all of its
// clients on the GPU (NVIDIA's MPS guide, error containment). It says so within
// milliseconds; 0.34 s later the clients may be gone and its status is ACTIVE again, so that
// who only asks for the status sees nothing.
//
// The server runs as the user of the jobs and logs through a FIFO in the pipe directory,
// which is open to that user: what stands in the log is the user's word about the user's own
// jobs, and nothing but the fact is taken from it. Nor does the log tell the cause: the line before
// names a client that "encountered" the error, 2 of 2 times the neighbour of the client with the
// illegal access (driver 580, contrib/gpucheck/data). The log closes no GPU: get_server_status does.
var fatal = []byte("Server is handling a fatal GPU error")

// The log is read so far at one look, and a line so far.
const (
	maxLook = 1 << 20
	maxLine = 4 << 10
)

// A position in a log is an offset, and which tenure's log it is in.
const (
	offsetBits = 40 // of a log that is emptied while its daemon writes on, and so has a hole at its beginning
	beganBits  = 62 - offsetBits
)

// ServerFault reads what the servers of a daemon have logged beyond a position, in this tenure of
// the daemon alone, and tells whether one of them had a fault and where the log ends now. A log
// that is shorter was emptied; of one that has grown by more than can be read the end is.
func (c Control) ServerFault(d gres.Daemon, from int64) (fault bool, to int64, err error) {
	t, noted := readTenure(PipeDir(c.RunDir, d))
	if !noted {
		return false, from, nil
	}
	began := int64(t.Began) << offsetBits
	if from&^(1<<offsetBits-1) != began {
		from = began
	}
	fault, to, err = c.serverFault(d, from-began)
	return fault, began + to&(1<<offsetBits-1), err
}

func (c Control) serverFault(d gres.Daemon, from int64) (fault bool, to int64, err error) {
	f, err := os.OpenFile(filepath.Join(c.logDir(d), "server.log"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, 0, nil
	}
	if err == nil {
		defer f.Close()
		to, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return false, from, fmt.Errorf("follow the log of MPS servers: %w", err)
	}
	if from > to {
		from = 0
	}
	from = max(from, to-maxLook)
	lines := bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), maxLine)
	for at := from; ; {
		line, lineErr := lines.ReadSlice('\n')
		fault = fault || bytes.Contains(line, fatal)
		switch {
		case lineErr == nil, errors.Is(lineErr, bufio.ErrBufferFull): // of a long line the next part
			at += int64(len(line))
		case errors.Is(lineErr, io.EOF):
			if len(line) < maxLine/2 && !bytes.Contains(line, fatal) {
				to = at // the rest of the line is to come
			}
			return fault, to, nil
		default:
			return fault, at, fmt.Errorf("follow the log of MPS servers: %w", lineErr)
		}
	}
}
