package pveconf

// Current is what status/current has of a VM, as far as it matters here.
type Current struct {
	Status    Scalar
	QMPStatus Scalar
	Uptime    Scalar
	HA        struct{ Managed Scalar }
}

// The words of QEMU for a guest whose CPUs stand still (PVE 9.2 qemu-server: qmpstatus):
// by a person or a program, asleep by itself, and halted because a write has failed, as
// when a storage is full.
const (
	paused    = "paused"
	suspended = "suspended"
	ioError   = "io-error"
)

// Pause is the word for why the CPUs of a VM stand still, "" where they do not.
func (c Current) Pause() string {
	switch c.QMPStatus {
	case paused, suspended, ioError:
		return string(c.QMPStatus)
	}
	return ""
}

// Halt is Pause where that was not by a person.
func (c Current) Halt() string {
	if why := c.Pause(); why != paused {
		return why
	}
	return ""
}
