package factory

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// drip is a ResponseWriter through which size bytes take as long as whole, in
// pieces, so that a client sees progress.
type drip struct {
	http.ResponseWriter
	size  int64
	whole time.Duration
	sleep func(time.Duration) error
	// through decides how many of the body's bytes get through; nil: all.
	through func(length int64) int64

	sent  int64
	spent time.Duration
}

const dripPiece = 4 << 10

// errHeldBack ends a body that is not to get through whole.
var errHeldBack = errors.New("the rest of the body is lost")

// bodyLength is the body's length: with a range less than the image's.
func (d *drip) bodyLength() int64 {
	n, err := strconv.ParseInt(d.Header().Get("Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Write implements io.Writer.
func (d *drip) Write(p []byte) (n int, err error) {
	flush := http.NewResponseController(d.ResponseWriter).Flush
	limit := d.bodyLength()
	if d.through != nil {
		limit = d.through(limit)
	}
	for len(p) > 0 {
		piece := p[:min(int64(len(p)), dripPiece, limit-d.sent)]
		if len(piece) == 0 {
			return n, errHeldBack
		}
		// From the sum, so that rounding does not add up.
		took := d.whole*time.Duration(d.sent+int64(len(piece)))/time.Duration(d.size) - d.spent
		if err := d.sleep(took); err != nil {
			return n, err
		}
		m, err := d.ResponseWriter.Write(piece)
		n += m
		d.sent += int64(m)
		d.spent += took
		if err != nil {
			return n, err
		}
		if err := flush(); err != nil {
			return n, err
		}
		p = p[len(piece):]
	}
	return n, nil
}

type writerKey struct{}

// keepWriter keeps the real ResponseWriter of each request for answers that
// break in the middle: a lost reply is carried out before a writer that
// discards everything.
func keepWriter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), writerKey{}, rw)))
	})
}

func writerOf(ctx context.Context) http.ResponseWriter {
	return ctx.Value(writerKey{}).(http.ResponseWriter)
}
