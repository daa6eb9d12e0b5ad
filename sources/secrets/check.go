package secrets

// Check parses an encrypted document as Decrypt does, without any key. Name is used in errors
// only, which are those of Decrypt.
func Check(name string, file []byte) error {
	if _, bad := loadTree(file); bad != nil {
		return bad.in(name)
	}
	return nil
}
