package fault

// Usage is a wrong use of the program, like a flag that says the impossible,
// wherever that is found out.
type Usage struct{ Err error }

// Error implements error.
func (e *Usage) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Usage) Unwrap() error { return e.Err }
