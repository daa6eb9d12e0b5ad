// Command apiserver is a real kube-apiserver with a real etcd in one process,
// and a real kubectl, built from their Go modules for the end-to-end test of
// the addon path. It is a module of its own, so that the agent's does not carry
// Kubernetes itself.
//
//	apiserver serve --dir DIR --address 127.0.0.1 --port 6443
//	apiserver kubectl ARGS...
//
// serve expects ca.crt and ca.key (PEM) in DIR: the cluster's Kubernetes CA. It
// signs its own serving certificate with it and trusts clients it signed. Every
// request is recorded in DIR/audit.log, one JSON object a line.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "apiserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("say serve or kubectl")
	}
	switch args[0] {
	case "serve":
		return serve(args[1:])
	case "kubectl":
		os.Args = append([]string{"kubectl"}, args[1:]...)
		if code := cli.Run(cmd.NewDefaultKubectlCommand()); code != 0 {
			os.Exit(code)
		}
		return nil
	default:
		return fmt.Errorf("unknown command %q: say serve or kubectl", args[0])
	}
}

func serve(args []string) error {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	dir := fs.String("dir", "", "directory with ca.crt and ca.key, for everything else too")
	address := fs.String("address", "127.0.0.1", "address to listen at")
	port := fs.Int("port", 6443, "port to listen at")
	etcdPort := fs.Int("etcd-port", 2379, "port of etcd; the next one is its peer port")
	clientCA := fs.String("client-ca", "", "file with the authority whose clients are trusted; default: ca.crt in dir")
	services := fs.String("service-cidr", "10.96.0.0/12", "addresses of services")
	if err := fs.Parse(args); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(*dir, name) }
	if *clientCA == "" {
		*clientCA = file("ca.crt")
	}
	if err := os.WriteFile(file("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	if err := signServing(file("ca.crt"), file("ca.key"), file("serving.crt"), file("serving.key"), *address); err != nil {
		return fmt.Errorf("make the serving certificate: %w", err)
	}
	etcd, err := startEtcd(file("etcd"), *address, *etcdPort)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer etcd.Close()

	command := app.NewAPIServerCommand()
	command.SetArgs([]string{
		"--advertise-address=" + *address,
		"--bind-address=" + *address,
		fmt.Sprintf("--secure-port=%d", *port),
		fmt.Sprintf("--etcd-servers=http://%s:%d", *address, *etcdPort),
		"--client-ca-file=" + *clientCA,
		"--tls-cert-file=" + file("serving.crt"),
		"--tls-private-key-file=" + file("serving.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + file("serving.key"),
		"--service-account-signing-key-file=" + file("serving.key"),
		"--service-cluster-ip-range=" + *services,
		"--audit-policy-file=" + file("audit.yaml"),
		"--audit-log-path=" + file("audit.log"),
		"--authorization-mode=Node,RBAC",
		// There are no controllers here that would make the account.
		"--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none",
		"--v=0",
	})
	return command.Execute()
}

// auditPolicy records who asked what, once it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

func startEtcd(dir, address string, port int) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir = dir
	c.Logger, c.LogLevel = "zap", "error"
	client := url.URL{Scheme: "http", Host: net.JoinHostPort(address, fmt.Sprint(port))}
	peer := url.URL{Scheme: "http", Host: net.JoinHostPort(address, fmt.Sprint(port+1))}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.UnsafeNoFsync = true // a test's data may be lost with the machine
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		return nil, err
	case <-time.After(time.Minute):
		e.Close()
		return nil, errors.New("it did not become ready within a minute")
	}
}

// signServing signs a serving certificate for address with the CA in the
// files, and writes it and its key.
func signServing(caCert, caKey, cert, key, address string) error {
	ca, err := tls.LoadX509KeyPair(caCert, caKey)
	if err != nil {
		return err
	}
	parent, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		return err
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{net.ParseIP(address)},
		DNSNames:     []string{"kubernetes", "kubernetes.default.svc"},
	}, parent, &k.PublicKey, ca.PrivateKey)
	if err != nil {
		return err
	}
	rawKey, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return err
	}
	if err := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: rawKey}), 0o600)
}
