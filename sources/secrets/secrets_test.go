package secrets

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	sopsage "github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/cmd/sops/common"
	"github.com/getsops/sops/v3/keyservice"
	"github.com/getsops/sops/v3/version"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"github.com/talos-agent/talos-agent/internal/fault"
)

// canary is a secret that must show up nowhere but in the clear document.
const canary = "canary-5f2a9c1e"

const plain = `cluster:
    id: ` + canary + `
    secret: "0123"
certs:
    k8s:
        crt: LS0t
        key: ` + canary + `-key
values:
    port: 8443
    ratio: 1.5
    on: true
    none: null
    empty: ""
    list: [a, ` + canary + `-item, 3]
    stamp: "2024-01-02"
    multi: |
        line one
        line two
trustdinfo: {token: ` + canary + `-t}
`

// member is a key pair for tests.
type member struct{ private, public string }

func newMember() member {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		panic(err)
	}
	return member{id.String(), id.Recipient().String()}
}

func newHybrid() member {
	id, err := age.GenerateHybridIdentity()
	if err != nil {
		panic(err)
	}
	return member{id.String(), id.Recipient().String()}
}

func newSSH(t testing.TB, key any, public any, passphrase string) member {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "me@host")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "me@host", []byte(passphrase))
	}
	check(t, err)
	pub, err := ssh.NewPublicKey(public)
	check(t, err)
	return member{string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(pub)))}
}

func newSSHEd25519(t testing.TB, passphrase string) member {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	return newSSH(t, key, pub, passphrase)
}

func newSSHRSA(t testing.TB) member {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(t, err)
	return newSSH(t, key, key.Public(), "")
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func identities(t testing.TB, members ...member) *Identities {
	t.Helper()
	var b strings.Builder
	b.WriteString("# created: 2024-01-02T03:04:05Z\n\n")
	for _, m := range members {
		b.WriteString("# public key: " + m.public + "\n" + m.private + "\n")
	}
	ids, err := ParseIdentities([]byte(b.String()))
	check(t, err)
	return ids
}

func encrypt(t testing.TB, text string, recipients ...string) []byte {
	t.Helper()
	b, err := Encrypt([]byte(text), recipients)
	check(t, err)
	return b
}

func decode(t testing.TB, b []byte) map[string]any {
	t.Helper()
	var v map[string]any
	check(t, yaml.Unmarshal(b, &v))
	return v
}

func TestRoundTripWithEveryKindOfKey(t *testing.T) {
	for name, m := range map[string]member{
		"age": newMember(), "post-quantum": newHybrid(), "ssh-ed25519": newSSHEd25519(t, ""), "ssh-rsa": newSSHRSA(t),
	} {
		t.Run(name, func(t *testing.T) {
			other := newMember()
			file := encrypt(t, plain, other.public, m.public)
			if bytes.Contains(file, []byte(canary)) {
				t.Fatal("a value is in clear")
			}
			for _, ids := range []*Identities{identities(t, m), identities(t, other), identities(t, newMember(), m)} {
				got, err := Decrypt(t.Context(), "secrets.sops.yaml", file, ids)
				check(t, err)
				if g, w := decode(t, got), decode(t, []byte(plain)); !reflect.DeepEqual(g, w) {
					t.Errorf("decrypted to %v, want %v", g, w)
				}
			}
			if ids := identities(t, m); ids.Recipients()[0] != m.public {
				t.Errorf("public half %s, want %s", ids.Recipients()[0], m.public)
			}
		})
	}
}

// TestSopsReadsWhatWeWrite opens our documents the way the sops program does.
func TestSopsReadsWhatWeWrite(t *testing.T) {
	m := newMember()
	tree, err := newStore().LoadEncryptedFile(encrypt(t, "# a comment\n"+plain, m.public))
	check(t, err)
	t.Setenv("SOPS_AGE_KEY", m.private)
	_, err = common.DecryptTree(common.DecryptTreeOpts{Tree: &tree, KeyServices: []keyservice.KeyServiceClient{keyservice.NewLocalClient()}, Cipher: aes.NewCipher()})
	check(t, err)
	out, err := newStore().EmitPlainFile(tree.Branches)
	check(t, err)
	if g, w := decode(t, out), decode(t, []byte(plain)); !reflect.DeepEqual(g, w) {
		t.Errorf("sops decrypts to %v, want %v", g, w)
	}
	if !bytes.Contains(out, []byte("# a comment")) {
		t.Error("the comment is missing")
	}
	if sopsVersion != version.Version {
		t.Errorf("documents are marked with sops %s, the library is %s", sopsVersion, version.Version)
	}
}

// sopsFile encrypts the way the sops program does, with settings of our
// choice.
func sopsFile(t testing.TB, text string, set func(*sops.Metadata), recipients ...string) []byte {
	t.Helper()
	branches, err := newStore().LoadPlainFile([]byte(text))
	check(t, err)
	tree := sops.Tree{Branches: branches, Metadata: sops.Metadata{Version: version.Version}}
	var group sops.KeyGroup
	for _, r := range recipients {
		group = append(group, &sopsage.MasterKey{Recipient: r})
	}
	tree.Metadata.KeyGroups = []sops.KeyGroup{group}
	if set != nil {
		set(&tree.Metadata)
	}
	key, errs := tree.GenerateDataKeyWithKeyServices([]keyservice.KeyServiceClient{keyservice.NewLocalClient()})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	check(t, common.EncryptTree(common.EncryptTreeOpts{Tree: &tree, Cipher: aes.NewCipher(), DataKey: key}))
	out, err := newStore().EmitEncryptedFile(tree)
	check(t, err)
	return out
}

func TestSettingsOfSops(t *testing.T) {
	m := newMember()
	ids := identities(t, m)
	for name, tc := range map[string]struct {
		text  string
		set   func(*sops.Metadata)
		kind  error // nil: accepted
		words []string
	}{
		"none":                          {plain, nil, nil, nil},
		"comments":                      {"# one\na: 1 # two\nb:\n  # three\n  - x\n", nil, nil, nil},
		"a regex that matches all":      {plain, func(m *sops.Metadata) { m.EncryptedRegex = "^(cluster|certs|values|trustdinfo)$" }, nil, nil},
		"a regex that leaves one":       {plain, func(m *sops.Metadata) { m.EncryptedRegex = "^(cluster|certs|values)$" }, ErrPlaintext, []string{"trustdinfo.token is not encrypted", "encrypted_regex"}},
		"unencrypted regex":             {plain, func(m *sops.Metadata) { m.UnencryptedRegex = "^port$" }, ErrPlaintext, []string{"values.port is not encrypted"}},
		"unencrypted suffix":            {"a: {b_clear: [x]}\n", func(m *sops.Metadata) { m.UnencryptedSuffix = "_clear" }, ErrPlaintext, []string{"a.b_clear[0] is not encrypted"}},
		"default suffix":                {"note_unencrypted: x\n", func(m *sops.Metadata) { m.UnencryptedSuffix = sops.DefaultUnencryptedSuffix }, ErrPlaintext, []string{"note_unencrypted is not encrypted"}},
		"encrypted suffix":              {"a_secret: x\nb: 1\n", func(m *sops.Metadata) { m.EncryptedSuffix = "_secret" }, ErrPlaintext, []string{"b is not encrypted, line 2"}},
		"mac over encrypted values":     {plain, func(m *sops.Metadata) { m.MACOnlyEncrypted = true }, ErrUnsupported, []string{"mac_only_encrypted", "unauthenticated"}},
		"comment regex":                 {"# secret\na: x\n", func(m *sops.Metadata) { m.EncryptedCommentRegex = "secret" }, ErrUnsupported, []string{"comments"}},
		"two key groups with our key":   {plain, func(to *sops.Metadata) { to.KeyGroups = append(to.KeyGroups, groupOf(m)) }, nil, nil},
		"a key group of others":         {plain, func(m *sops.Metadata) { m.KeyGroups = append(m.KeyGroups, groupOf(newMember())) }, ErrNoKey, []string{"split over 2 key groups, of which it takes 2 to open it, and the agent's key opens 1", "use one key group"}},
		"a value that looks encrypted":  {"a: ENC[AES256_GCM,data:A,iv:A,tag:A,type:str]\n", nil, ErrUnsupported, []string{"a is encrypted, but"}},
		"a key with dots and a newline": {"\"x.y\\nz\": {u: 1}\n", func(m *sops.Metadata) { m.UnencryptedRegex = "^u$" }, ErrPlaintext, []string{`"x.y\nz.u" is not encrypted`}},
	} {
		t.Run(name, func(t *testing.T) {
			file := sopsFile(t, tc.text, tc.set, m.public)
			got, err := Decrypt(t.Context(), "secrets.sops.yaml", file, ids)
			if tc.kind == nil {
				check(t, err)
				if g, w := decode(t, got), decode(t, []byte(tc.text)); !reflect.DeepEqual(g, w) {
					t.Errorf("decrypted to %v, want %v", g, w)
				}
				return
			}
			wantKind(t, err, tc.kind, append(tc.words, "secrets.sops.yaml: ")...)
		})
	}
}

// wantKind checks the kind, the words of error and hint, and that the canary
// is in neither.
func wantKind(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	text := fmt.Sprintf("%v %+v %#v", err, err, err)
	if hint := fault.HintOf(err); hint != "" {
		text += " | " + hint
	}
	if strings.Contains(text, canary) {
		t.Errorf("the error gives a secret away: %s", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("error %q does not contain %q", text, w)
		}
	}
}

func TestTampering(t *testing.T) {
	m := newMember()
	ids := identities(t, m)
	const text = "a: " + canary + "\nb: {c: " + canary + "2, d: \"5\"}\nlist: [x, y]\n"
	good := string(encrypt(t, text, m.public))
	value := func(key string) string {
		return regexp.MustCompile(`(?m)^ *` + key + `: (ENC\[[^\]]*\])`).FindStringSubmatch(good)[1]
	}
	attacker := newMember()
	theirs := string(encrypt(t, text, attacker.public))
	dataKeyOf := func(file string) string {
		return regexp.MustCompile(`(?s)-----BEGIN AGE.*?END AGE ENCRYPTED FILE-----\n`).FindString(file)
	}
	for name, tc := range map[string]struct {
		file string
		kind error
		word string
	}{
		"a value's bytes":           {strings.Replace(good, value("a")[22:26], "AAAA", 1), ErrTampered, "changed, moved or replaced"},
		"two values swapped":        {strings.NewReplacer(value("a"), value("c"), value("c"), value("a")).Replace(good), ErrTampered, "changed, moved"},
		"a value removed":           {regexp.MustCompile(`(?m)^a: .*\n`).ReplaceAllString(good, ""), ErrTampered, "added, removed or reordered"},
		"a value emptied":           {strings.Replace(good, value("a"), `""`, 1), ErrTampered, "added, removed or reordered"},
		"a value made null":         {strings.Replace(good, value("a"), `null`, 1), ErrTampered, "added, removed or reordered"},
		"items reordered":           {swapItems(good), ErrTampered, "added, removed or reordered"},
		"a clear value added":       {"new: x\n" + good, ErrPlaintext, "new is not encrypted"},
		"a clear number added":      {"new: 5\n" + good, ErrPlaintext, "new is not encrypted"},
		"a key renamed":             {strings.Replace(good, "a: ", "z: ", 1), ErrTampered, "changed, moved"},
		"type made a number":        {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:int", 1), 1), ErrTampered, "changed, moved"},
		"type made a float":         {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:float", 1), 1), ErrTampered, "changed, moved"},
		"type made a boolean":       {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:bool", 1), 1), ErrTampered, "changed, moved"},
		"type made a time":          {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:time", 1), 1), ErrTampered, "changed, moved"},
		"type made bytes":           {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:bytes", 1), 1), ErrTampered, "a is not as sops writes"},
		"type made a comment":       {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:comment", 1), 1), ErrTampered, "authentication code"},
		"type made unknown":         {strings.Replace(good, value("a"), strings.Replace(value("a"), "type:str", "type:x", 1), 1), ErrTampered, "a is not as sops writes"},
		"time of change":            {regexp.MustCompile(`lastmodified: "(\d+)`).ReplaceAllString(good, `lastmodified: "1999`), ErrTampered, "lastmodified"},
		"code removed":              {regexp.MustCompile(`(?m)^ *mac: .*\n`).ReplaceAllString(good, ""), ErrTampered, "authentication code"},
		"code of another file":      {regexp.MustCompile(`mac: \S+`).ReplaceAllString(good, regexp.MustCompile(`mac: \S+`).FindString(theirs)), ErrTampered, "authentication code"},
		"code made a number":        {regexp.MustCompile(`(mac: \S+)type:str`).ReplaceAllString(good, "${1}type:int"), ErrTampered, "authentication code"},
		"code made bytes":           {regexp.MustCompile(`(mac: \S+)type:str`).ReplaceAllString(good, "${1}type:bytes"), ErrTampered, "authentication code"},
		"data key of another":       {strings.Replace(good, dataKeyOf(good), dataKeyOf(theirs), 1), ErrTampered, "encrypted for another"},
		"data key damaged":          {strings.Replace(good, "YWdlLWVuY3J5cHRpb24", "AAAAAAAAAAAAAAAAAAA", 1), ErrTampered, "damaged"},
		"encrypted to somebody":     {theirs, ErrNoKey, attacker.public},
		"settings that exclude":     {regexp.MustCompile(`unencrypted_suffix: \S+`).ReplaceAllString(good, "unencrypted_regex: ^a$"), ErrTampered, ""},
		"mac_only_encrypted":        {regexp.MustCompile(`unencrypted_suffix: \S+`).ReplaceAllString(good, "mac_only_encrypted: true"), ErrUnsupported, "mac_only_encrypted"},
		"mac_only_encrypted, text":  {regexp.MustCompile(`unencrypted_suffix: \S+`).ReplaceAllString(good, `mac_only_encrypted: "true"`), nil, ""},
		"no sops section":           {good[:strings.Index(good, "sops:")], ErrPlaintext, "is not encrypted"},
		"empty sops section":        {good[:strings.Index(good, "sops:")] + "sops: {}\n", ErrMalformed, "sops section"},
		"sops section a text":       {good[:strings.Index(good, "sops:")] + "sops: x\n", ErrMalformed, "sops section"},
		"plain file":                {text, ErrPlaintext, "sops encrypt"},
		"empty file":                {"", ErrPlaintext, "secrets new"},
		"comment only":              {"# x\n", ErrPlaintext, ""},
		"a list":                    {"- a\n", ErrMalformed, "no YAML mapping"},
		"a second document":         {good + "---\na: b\n", ErrMalformed, "more than one"},
		"a second document, bomb":   {good + "---\n" + bomb, ErrMalformed, ""},
		"a bomb":                    {bomb + good, ErrMalformed, "alias"},
		"an alias to itself":        {"x: &x [*x]\n" + good, ErrMalformed, "alias"},
		"an anchor in the metadata": {strings.Replace(good, "sops:\n", "sops:\n  x: &x 1\n  y: *x\n", 1), ErrMalformed, "alias"},
		"a merge key":               {"<<: {q: \"\"}\n" + good, ErrMalformed, "no string"},
		"a duplicate":               {"list: []\n" + good, ErrMalformed, "list is there twice"},
		"a number for a key":        {"5: \"\"\n" + good, ErrMalformed, "no string"},
		"deep":                      {"deep: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n" + good, ErrMalformed, "nested"},
		"very deep":                 {"deep: " + strings.Repeat("[", 20_000) + "\n" + good, ErrMalformed, ""},
		"not YAML":                  {good + "a: b: " + canary + "\n", ErrMalformed, "near line"},
		"long":                      {"# " + strings.Repeat("x", maxDocument) + "\n" + good, ErrMalformed, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.file == good {
				t.Fatal("the file was not changed")
			}
			_, err := Decrypt(t.Context(), "secrets.sops.yaml", []byte(tc.file), ids)
			if tc.kind == nil {
				if err == nil {
					t.Fatal("accepted")
				}
				wantKind(t, err, err)
				return
			}
			wantKind(t, err, tc.kind, tc.word)
		})
	}
	_, err := Decrypt(t.Context(), "x", []byte(good), ids)
	check(t, err)
}

const bomb = `a0: &a0 [x,x,x,x,x,x,x,x,x,x]
a1: &a1 [*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0,*a0]
a2: &a2 [*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1,*a1]
a3: &a3 [*a2,*a2,*a2,*a2,*a2,*a2,*a2,*a2,*a2,*a2]
a4: &a4 [*a3,*a3,*a3,*a3,*a3,*a3,*a3,*a3,*a3,*a3]
a5: &a5 [*a4,*a4,*a4,*a4,*a4,*a4,*a4,*a4,*a4,*a4]
a6: &a6 [*a5,*a5,*a5,*a5,*a5,*a5,*a5,*a5,*a5,*a5]
a7: [*a6,*a6,*a6,*a6,*a6,*a6,*a6,*a6,*a6,*a6]
`

func swapItems(file string) string {
	items := regexp.MustCompile(`(?m)^ +- (ENC\[.*\])$`).FindAllStringSubmatch(file, 2)
	return strings.NewReplacer(items[0][1], items[1][1], items[1][1], items[0][1]).Replace(file)
}

// TestKeysOfOtherKindsAreNotTouched: a document may name services and
// programs; nothing is asked but our identity.
func TestKeysOfOtherKindsAreNotTouched(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Error("a connection was made")
			_ = c.Close()
		}
	}()
	url := "http://" + l.Addr().String()
	t.Setenv("HTTP_PROXY", url)
	t.Setenv("HTTPS_PROXY", url)
	t.Setenv("VAULT_ADDR", url)
	t.Setenv("VAULT_TOKEN", "x")
	ran := filepath.Join(t.TempDir(), "ran")
	gpg := filepath.Join(t.TempDir(), "gpg")
	check(t, os.WriteFile(gpg, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o700))
	t.Setenv("SOPS_GPG_EXEC", gpg)

	others := strings.NewReplacer("URL", url).Replace(`
  kms: [{arn: "arn:aws:kms:us-east-1:1:key/1", created_at: "2024-01-02T03:04:05Z", enc: AAAA, context: {a: null}, aws_profile: ""}]
  gcp_kms: [{resource_id: projects/p/locations/l/keyRings/r/cryptoKeys/k, created_at: "2024-01-02T03:04:05Z", enc: AAAA}]
  azure_kv: [{vault_url: "URL", name: n, version: v, created_at: "2024-01-02T03:04:05Z", enc: AAAA}]
  hc_vault: [{vault_address: "URL", engine_path: e, key_name: k, created_at: "2024-01-02T03:04:05Z", enc: AAAA}]
  pgp: [{fp: "0000000000000000000000000000000000000000", created_at: "2024-01-02T03:04:05Z", enc: AAAA}]
`)
	m := newMember()
	file := bytes.Replace(encrypt(t, plain, m.public), []byte("sops:\n"), []byte("sops:"+others), 1)
	if bytes.Count(file, []byte("hc_vault")) != 1 {
		t.Fatalf("no such keys in\n%s", file)
	}
	got, err := Decrypt(t.Context(), "s", file, identities(t, m))
	check(t, err)
	if !bytes.Contains(got, []byte(canary)) {
		t.Error("not decrypted")
	}
	_, err = Decrypt(t.Context(), "s", file, identities(t, newMember()))
	wantKind(t, err, ErrNoKey, m.public, "hc_vault", "kms", "pgp", "not used")
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program was run")
	}
}

// TestNothingButTheIdentitiesIsUsed: keys that would fit lie in every place
// where sops looks for them.
func TestNothingButTheIdentitiesIsUsed(t *testing.T) {
	m, s := newMember(), newSSHEd25519(t, "")
	home := t.TempDir()
	ran := filepath.Join(home, "ran")
	write := func(name, text string) string {
		p := filepath.Join(home, name)
		check(t, os.MkdirAll(filepath.Dir(p), 0o700))
		check(t, os.WriteFile(p, []byte(text), 0o700))
		return p
	}
	keyFile := write(".config/sops/age/keys.txt", m.private+"\n")
	sshFile := write(".ssh/id_ed25519", s.private)
	script := write("script", "#!/bin/sh\ntouch "+ran+"\ncat "+keyFile+"\n")
	plugin := write("bin/age-plugin-x", "#!/bin/sh\ntouch "+ran+"\n")
	for name, value := range map[string]string{
		"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config"), "PATH": filepath.Dir(plugin) + ":" + os.Getenv("PATH"),
		"SOPS_AGE_KEY": m.private, "SOPS_AGE_KEY_FILE": keyFile, "SOPS_AGE_KEY_CMD": script,
		"SOPS_AGE_SSH_PRIVATE_KEY_FILE": sshFile, "SOPS_AGE_SSH_PRIVATE_KEY_CMD": script,
		"SOPS_KMS_ARN": "x", "SOPS_PGP_FP": "x", "SOPS_AGE_RECIPIENTS": m.public,
	} {
		t.Setenv(name, value)
	}
	file := encrypt(t, plain, m.public, s.public)
	// sops itself does decrypt it here, and runs the program on the way.
	tree, err := newStore().LoadEncryptedFile(file)
	check(t, err)
	if _, err := tree.Metadata.GetDataKey(); err != nil {
		t.Fatalf("the trap is not set: %v", err)
	}
	check(t, os.Remove(ran))

	_, err = Decrypt(t.Context(), "s", file, identities(t, newMember()))
	wantKind(t, err, ErrNoKey, m.public, s.public[:40], "sops updatekeys")
	for _, ids := range []*Identities{nil, {}} {
		_, err = Decrypt(t.Context(), "s", file, ids)
		wantKind(t, err, ErrNoKey, "no age key")
	}
	_, err = Encrypt([]byte("a: b: c"), []string{m.public})
	wantKind(t, err, ErrMalformed)
	_, err = Encrypt([]byte(plain), []string{"age1x1qqqqqqqqqq"})
	wantKind(t, err, ErrKeys, "plugin")
	_, err = ParseIdentities([]byte("AGE-PLUGIN-X-1QQQQ\n"))
	wantKind(t, err, ErrKeys, "plugin")
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program was run")
	}
}

func TestDecryptHeedsItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := newMember()
	if _, err := Decrypt(ctx, "s", encrypt(t, plain, m.public), identities(t, m)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestParseIdentities(t *testing.T) {
	m, h, s := newMember(), newHybrid(), newSSHEd25519(t, "")
	for name, tc := range map[string]struct {
		text   string
		public []string // nil: refused
		words  []string
	}{
		"as age-keygen writes": {"# created: 2024\n# public key: " + m.public + "\n" + m.private + "\n", []string{m.public}, nil},
		"several":              {m.private + "\r\n\n  " + h.private + "  \n" + s.private + "# end", []string{m.public, h.public, s.public}, nil},
		"without a line break": {m.private, []string{m.public}, nil},
		"empty":                {"", nil, []string{"holds no key", "age-keygen"}},
		"comments only":        {"# " + m.private + "\n", nil, []string{"holds no key"}},
		"public key":           {m.private + "\n" + m.public + "\n", nil, []string{"line 2", "public key"}},
		"ssh public key":       {s.public, nil, []string{"line 1", "public key"}},
		"broken":               {"\n" + withWrongEnd(m.private) + "\n", nil, []string{"line 2", "no valid key"}},
		"lower case":           {strings.ToLower(m.private), nil, []string{"no age key"}},
		"plugin":               {"AGE-PLUGIN-YUBIKEY-1QQQQ", nil, []string{"plugin"}},
		"passphrase":           {"age-encryption.org/v1\n-> scrypt x 18\n", nil, []string{"passphrase"}},
		"passphrase, armored":  {"-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n-----END AGE ENCRYPTED FILE-----\n", nil, []string{"passphrase"}},
		"ssh passphrase":       {newSSHEd25519(t, "x").private, nil, []string{"passphrase"}},
		"ssh, cut":             {"# x\n" + s.private[:100], nil, []string{"line 2", "no end"}},
		"certificate":          {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + m.private, nil, []string{"no ssh key"}},
		"line after a block":   {s.private + "\nwhat\n", nil, []string{fmt.Sprintf("line %d", strings.Count(s.private, "\n")+2)}},
		"long":                 {strings.Repeat("#\n", maxKeys), nil, []string{"longer"}},
	} {
		t.Run(name, func(t *testing.T) {
			ids, err := ParseIdentities([]byte(tc.text))
			if tc.public == nil {
				wantKind(t, err, ErrKeys, tc.words...)
				if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "QQQQ") {
					t.Errorf("the error quotes the key: %v", err)
				}
				return
			}
			check(t, err)
			if got := ids.Recipients(); !reflect.DeepEqual(got, tc.public) {
				t.Errorf("recipients %v, want %v", got, tc.public)
			}
		})
	}
}

// withWrongEnd gives the key another last character than its own, so that its
// checksum is wrong for any key.
func withWrongEnd(key string) string {
	end := "X"
	if strings.HasSuffix(key, end) {
		end = "Q"
	}
	return key[:len(key)-1] + end
}

func TestIdentitiesDoNotPrint(t *testing.T) {
	m := newMember()
	ids := identities(t, m)
	holder := struct {
		P *Identities
		V Identities
	}{ids, *ids}
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "ids", ids, "value", *ids, "holder", holder)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "ids", ids, "value", *ids, "holder", holder)
	for _, v := range []any{ids, *ids, holder, &holder} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		check(t, err)
		out.Write(b)
		y, err := yaml.Marshal(v)
		check(t, err)
		out.Write(y)
	}
	fmt.Fprintln(&out, errors.Join(fmt.Errorf("x: %v", ids)))
	for _, secret := range []string{m.private, m.private[20:40], fmt.Sprintf("%x", m.private[:16]), m.public} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q shows in\n%s", secret, out.String())
		}
	}
	if !strings.Contains(out.String(), redacted) {
		t.Error("nothing was printed at all")
	}
}

func TestEncryptRefuses(t *testing.T) {
	m := newMember()
	for name, tc := range map[string]struct {
		text       string
		recipients []string
		kind       error
		word       string
	}{
		"nobody":              {plain, nil, ErrKeys, "no recipients"},
		"a private key":       {plain, []string{m.private}, ErrKeys, "private key"},
		"nonsense":            {plain, []string{m.public, "x"}, ErrKeys, "recipient x"},
		"a broken key":        {plain, []string{m.public[:40]}, ErrKeys, "no age or ssh public key"},
		"a certificate":       {plain, []string{"ssh-ed25519 AAAA"}, ErrKeys, "ssh public key"},
		"encrypted already":   {string(encrypt(t, plain, m.public)), []string{m.public}, ErrUnsupported, "already"},
		"a key left in clear": {"a: {x_unencrypted: 1}\n", []string{m.public}, ErrPlaintext, "rename the key"},
		"a list":              {"- " + canary, []string{m.public}, ErrMalformed, "mapping"},
		"an alias":            {"a: &a " + canary + "\nb: *a\n", []string{m.public}, ErrMalformed, "b is an alias"},
		"no YAML":             {"x: 1\na: b: " + canary, []string{m.public}, ErrMalformed, "line 2"},
		"nothing":             {"", []string{m.public}, ErrPlaintext, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Encrypt([]byte(tc.text), tc.recipients)
			wantKind(t, err, tc.kind, tc.word)
			if strings.Contains(err.Error(), m.private) {
				t.Error("the error quotes a private key")
			}
		})
	}
	out := encrypt(t, "a: 1\n", m.public, m.public)
	if n := bytes.Count(out, []byte("recipient:")); n != 1 {
		t.Errorf("%d recipients of one", n)
	}
}

// TestAnyDocumentSurvives encrypts and decrypts mappings at random.
func TestAnyDocumentSurvives(t *testing.T) {
	m := newMember()
	ids := identities(t, m)
	leaf := rapid.OneOf(
		rapid.StringMatching(`[ -~é\n\t]{0,12}`).AsAny(), rapid.Int32().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
		rapid.SampledFrom([]any{"", "null", "true", "010", "1.50", "~", "<<", "2024-01-02", "- a", "ENC[", "é", 1.5}),
	)
	// sops would leave a value below such a key in clear.
	key := rapid.StringMatching(`[a-zA-Z0-9 ._-]{1,8}`).Filter(func(s string) bool { return s != metadataKey })
	list := rapid.SliceOfN(leaf, 0, 3).AsAny()
	inner := rapid.MapOfN(key, leaf, 0, 3).AsAny()
	doc := rapid.MapOfN(key, rapid.OneOf(leaf, list, inner), 1, 5)
	rapid.Check(t, func(rt *rapid.T) {
		want := doc.Draw(rt, "document")
		// As JSON, which is YAML: the library writes some texts that it cannot
		// read, such as one that begins with an empty line and a tab.
		text, err := json.Marshal(want)
		if err != nil {
			rt.Fatal(err)
		}
		file, err := Encrypt(text, []string{m.public})
		if err != nil {
			rt.Fatalf("encrypt %s: %v", text, err)
		}
		got, err := Decrypt(context.Background(), "s", file, ids)
		if err != nil {
			rt.Fatalf("decrypt %s: %v", file, err)
		}
		var before, after map[string]any
		if err := errors.Join(yaml.Unmarshal(text, &before), yaml.Unmarshal(got, &after)); err != nil {
			rt.Fatal(err)
		}
		if !reflect.DeepEqual(before, after) {
			rt.Fatalf("%s came back as %s", text, got)
		}
	})
}

func FuzzDecrypt(f *testing.F) {
	// Always the same key, so that what was found before still decrypts. It
	// protects nothing.
	m := member{
		private: "AGE-SECRET-KEY-1HEKN0NDC2UJ3SZ5368HGK9R9JGZYMPZAHDGR2HRSCQLMGMPLJH0QZLSMQC",
		public:  "age16wvn430zwlzxlnh5qku4dv5qun5xl487dkwy6vpvdrvv075e9fdsrv9ndh",
	}
	f.Add(encrypt(f, plain, m.public))
	f.Add(sopsFile(f, "# c\na: [1, {b: c}] # d\n", nil, m.public))
	f.Add([]byte(plain))
	f.Add([]byte(bomb))
	f.Add([]byte("a: \"\"\nsops: {kms: [{arn: x, created_at: \"2024-01-02T03:04:05Z\", context: {a: null}}], lastmodified: \"2024-01-02T03:04:05Z\", mac: x}\n"))
	ids := identities(f, m)
	f.Fuzz(func(t *testing.T, file []byte) {
		plain, err := Decrypt(context.Background(), "s", file, ids)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Kind == nil {
				t.Errorf("error of no kind: %v", err)
			}
			return
		}
		if findMetadata(must(parseDocument(plain))) != nil {
			t.Error("the metadata is still there")
		}
	})
}

func must(n *yaml.Node, bad *Error) *yaml.Node {
	if bad != nil {
		panic(bad)
	}
	return n
}

func FuzzParseIdentities(f *testing.F) {
	f.Add([]byte("# c\n" + newMember().private + "\n"))
	f.Add([]byte(newSSHEd25519(f, "").private))
	f.Add([]byte(newHybrid().private))
	f.Add([]byte("-----BEGIN X-----\n-----END X-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, err := ParseIdentities(b)
		if err == nil && (len(ids.ids) == 0 || len(ids.ids) != len(ids.public)) {
			t.Errorf("%d identities, %d recipients", len(ids.ids), len(ids.public))
		}
	})
}

func BenchmarkDecrypt(b *testing.B) {
	m := newMember()
	file, ids := encrypt(b, plain, m.public), identities(b, m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decrypt(context.Background(), "s", file, ids); err != nil {
			b.Fatal(err)
		}
	}
}
