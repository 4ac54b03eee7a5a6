#!/bin/sh
# Make an authority, and certificates of a server and of a client: sh tls/make_certificates.sh FOLDER [NAME OF THE SERVER]
set -eu
folder=${1:?give a folder for the certificates}
server=${2:-localhost}
umask 077
mkdir -p "$folder"
cd "$folder"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

# issue NAME SUBJECT EXTENSIONS: a certificate of our authority for a key of its own.
issue() {
  key "$1"
  printf 'basicConstraints=critical,CA:false\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n%b\n' "$3" > "$1.ext"
  openssl req -new -key "$1.key" -subj "/CN=$2" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -days 365 -sha256 -extfile "$1.ext" -out "$1.crt" 2> /dev/null
  rm "$1.ext"
}

key ca
openssl req -x509 -new -key ca.key -days 3650 -sha256 -subj "/CN=toolbus authority" -addext keyUsage=critical,keyCertSign,cRLSign -out ca.crt
issue server "$server" "subjectAltName=DNS:$server,IP:127.0.0.1\nextendedKeyUsage=serverAuth"
issue client worker "extendedKeyUsage=clientAuth"
echo "made ca.crt, server.crt and client.crt, with their keys, in $folder"
