package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc"

	"github.com/talos-agent/talos-agent/internal/lab/talos"
)

// media is a lab with a client of each of its services.
type media struct {
	t    *testing.T
	lab  *Lab
	http *http.Client
}

// call makes a call of Proxmox VE, waits for its task, and returns what that ended with.
func (m *media) call(method, path, contentType string, body io.Reader) string {
	m.t.Helper()
	req, err := http.NewRequest(method, m.lab.PVE.URL()+"/api2/json"+path, body)
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Authorization", "PVEAPIToken="+m.lab.PVE.AdminToken())
	req.Header.Set("Content-Type", contentType)
	resp, err := m.http.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Data   any `json:"data"`
		Errors any `json:"errors"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		m.t.Fatalf("%s %s: %s %v (%v)", method, path, resp.Status, answer.Errors, err)
	}
	upid, _ := answer.Data.(string)
	if !strings.HasPrefix(upid, "UPID:") {
		return ""
	}
	if err := m.lab.PVE.WaitTask(context.Background(), upid); err != nil {
		return err.Error()
	}
	return ""
}

func (m *media) ok(method, path string, form url.Values) {
	m.t.Helper()
	if failed := m.call(method, path, "application/x-www-form-urlencoded", strings.NewReader(form.Encode())); failed != "" {
		m.t.Fatalf("%s %s: %s", method, path, failed)
	}
}

// download gets a boot asset of the Image Factory.
func (m *media) download(version, schematic, asset string) []byte {
	m.t.Helper()
	resp, err := m.http.Get(m.lab.Factory.URL() + "/image/" + schematic + "/" + version + "/" + asset)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		m.t.Fatalf("%s: %s (%v)", asset, resp.Status, err)
	}
	return all
}

func (m *media) upload(name string, content []byte) {
	m.t.Helper()
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	part, err := form.CreateFormField("content")
	if err == nil {
		_, err = part.Write([]byte("iso"))
	}
	if err == nil {
		part, err = form.CreateFormFile("filename", name)
	}
	if err == nil {
		_, err = part.Write(content)
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	if failed := m.call(http.MethodPost, "/nodes/pve1/storage/local/upload", form.FormDataContentType(), &b); failed != "" {
		m.t.Fatal(failed)
	}
}

func (m *media) view() talos.MachineView {
	m.t.Helper()
	all := m.lab.Talos.Machines()
	if len(all) != 1 {
		m.t.Fatalf("machines: %+v", all)
	}
	return all[0]
}

// apply gives the machine a config in maintenance mode.
func (m *media) apply(address, installer string) {
	m.t.Helper()
	bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now()), config.TalosVersion1_13, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		m.t.Fatal(err)
	}
	in, err := generate.NewInput("lab", "https://"+address+":6443", "1.36.1", generate.WithVersionContract(config.TalosVersion1_13), generate.WithSecretsBundle(bundle),
		generate.WithInstallDisk("/dev/sda"), generate.WithInstallImage(installer))
	if err != nil {
		m.t.Fatal(err)
	}
	cfg, err := in.Config(machine.TypeControlPlane)
	if err != nil {
		m.t.Fatal(err)
	}
	data, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := client.New(context.Background(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(address),
		client.WithGRPCDialOptions(grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return m.lab.DialContext(ctx, "tcp", addr) })))
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: data}); err != nil {
		m.t.Fatal(err)
	}
}

// TestBootFromMedium: a VM with an empty disk and a medium of the Image Factory becomes a machine in maintenance mode, is
// installed, and boots from its disk also without the medium. One whose disk is wiped has nothing to boot then.
func TestBootFromMedium(t *testing.T) {
	const plain, name = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", "talos-v1.13.8-nocloud-amd64.iso"
	synctest.Test(t, func(t *testing.T) {
		l, err := Start(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(l.CA())
		m := &media{t: t, lab: l, http: &http.Client{Transport: &http.Transport{DialContext: l.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots}}}}
		defer m.http.CloseIdleConnections()
		time.Sleep(time.Hour) // certificates are of an hour ago

		m.upload(name, m.download("v1.13.8", plain, "nocloud-amd64.iso"))
		m.ok("POST", "/nodes/pve1/qemu", url.Values{
			"vmid": {"401"}, "name": {"cp1"}, "memory": {"4096"}, "cores": {"2"}, "scsihw": {"virtio-scsi-single"}, "scsi0": {"local-lvm:20,serial=talos-sys"},
			"ide0": {"local:iso/" + name + ",media=cdrom"}, "ide2": {"local-lvm:cloudinit"}, "citype": {"nocloud"}, "ipconfig0": {"ip=10.10.0.11/24,gw=10.10.0.1"},
			"boot": {"order=scsi0;ide0"}, "net0": {"virtio=BC:24:11:00:00:0A,bridge=vmbr1"},
		})
		m.ok("POST", "/nodes/pve1/qemu/401/status/start", nil)
		time.Sleep(l.World.Latency.Boot + time.Second)
		if v := m.view(); v.Stage != "maintenance" || !v.Medium || v.Talos != "v1.13.8" || v.Schematic != plain || v.Address.String() != "10.10.0.11" {
			t.Fatalf("from the medium: %+v", v)
		}
		m.apply("10.10.0.11", fmt.Sprintf("factory.talos.dev/nocloud-installer/%s:v1.13.9", plain))
		time.Sleep(l.World.Latency.Apply + l.World.Latency.ImagePull + l.World.Latency.Install + l.World.Latency.Boot + 5*time.Second)
		installed := m.view()
		if v := installed; v.Medium || !v.Configured || v.Talos != "v1.13.9" {
			t.Fatalf("from the disk: %+v", v)
		}
		m.ok("PUT", "/nodes/pve1/qemu/401/config", url.Values{"ide0": {"none,media=cdrom"}})
		if failed := m.call("DELETE", "/nodes/pve1/storage/local/content/local:iso/"+name, "", nil); failed != "" {
			t.Fatal(failed)
		}
		if v := m.view(); v.BootID != installed.BootID {
			t.Errorf("it does not run on without its medium: %+v", v)
		}
		m.ok("POST", "/nodes/pve1/qemu/401/status/stop", nil)
		m.ok("POST", "/nodes/pve1/qemu/401/status/start", nil)
		time.Sleep(l.World.Latency.Boot + 5*time.Second)
		if v := m.view(); v.Medium || !v.Configured || v.Talos != "v1.13.9" {
			t.Errorf("without the medium: %+v", v)
		}
		if err := l.Broken(); err != nil {
			t.Error(err)
		}
	})
}
